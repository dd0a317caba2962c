"""The middle of a run: saved, played on, split; always the run that would have been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.kernel.simulation import Simulation
from raysim.scenario.program import ProgramScenario

FAILING = "scenarios/ray_node_failure"
SHARED = "scenarios/ray_shared_cluster"
CHANGES = ["fail_node=1", "kill_worker_on=0", "preempt=1,notice=5s", "slow_links=0,share=0.1"]


def scenario(root: Path, name: str = FAILING) -> ProgramScenario:
    loaded = raysim.load(root / name)
    assert isinstance(loaded, ProgramScenario)
    return loaded


def digest(result: raysim.Result) -> str:
    return str(result.summary["simulation"]["digest"])


def declared(job: ProgramScenario, **fault: Any) -> raysim.Result:
    """The run whose scenario says that beside its own faults."""
    known = job.document.data["faults"]
    changed = job.with_({"faults": [*known, {"at": "10s", **fault}]})
    return raysim.run(changed, record=False)


# ---- the clock -----------------------------------------------------------------------------------


def test_a_pause_is_no_event() -> None:
    """Neither in the digest, nor in what is pending; and it stands where it was put."""

    def played(pausing: bool) -> tuple[str, int, list[str]]:
        sim, seen = Simulation(), list[str]()
        for name in ("early", "late"):
            sim.at("5s" if name == "early" else "9s", seen.append, name)
        sim.at("7s", seen.append, "first")
        if pausing:
            sim.pause_at("7s", lambda: seen.append("pause"))
        sim.at("7s", seen.append, "second")
        pending = len(list(sim.pending()))
        sim.run()
        return sim.digest, pending, seen

    straight, paused = played(False), played(True)
    assert straight[:2] == paused[:2]
    assert paused[2] == ["early", "first", "pause", "second", "late"]


def test_what_is_done_in_a_pause_is_the_event_it_would_have_been() -> None:
    def played(declare: bool) -> str:
        sim, seen = Simulation(), list[str]()
        sim.at("7s", seen.append, "before")
        if declare:
            sim.at("7s", seen.append, "it")
        else:
            sim.pause_at("7s", lambda: sim.do(seen.append, "it"))
        sim.run()
        return sim.digest

    assert played(True) == played(False)


# ---- scenarios -----------------------------------------------------------------------------------


def test_branches_are_the_runs_that_declare_what_happens_in_them(root: Path) -> None:
    """To the last event; and none of them changes the run they branch from."""
    job = scenario(root)
    answer = raysim.what_if(job, CHANGES, at="10s")
    assert digest(answer.baseline) == digest(raysim.run(job, record=False))
    straight = {
        "fail_node=1": declared(job, fail_node=1),
        "kill_worker_on=0": declared(job, kill_worker_on=0),
        "preempt=1,notice=5s": declared(job, preempt=1, notice="5s"),
        "slow_links=0,share=0.1": declared(job, slow_links=0, share=0.1),
    }
    assert list(answer.branches) == CHANGES
    assert answer.failed == {}
    for name, result in answer.branches.items():
        assert digest(result) == digest(straight[name]), name
        for part in ("run", "time", "tasks", "object_store", "cost", "faults"):
            assert result.summary.get(part) == straight[name].summary.get(part), (name, part)


LONG = pytest.mark.exhaustive
"""A run of a minute: one moment of its will do every time."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "at"),
    [
        (FAILING, "0s"), (FAILING, "17s"), (FAILING, "90.123456789s"), (SHARED, "17s"),
        ("scenarios/serve_burst", "90.123456789s"),
        *(
            pytest.param(name, at, marks=LONG)
            for name, at in [
                *((FAILING, at) for at in ("100ms", "5s", "1min")),
                *((SHARED, at) for at in ("0s", "100ms", "5s", "1min", "90.123456789s")),
                *(("scenarios/serve_burst", at) for at in ("0s", "100ms", "5s", "17s", "1min")),
            ]
        ),
    ],
)  # fmt: skip
def test_at_any_moment(root: Path, name: str, at: str) -> None:
    """The first, one within what is periodic, an odd one; and where things happen."""
    job = scenario(root, name)
    known = job.document.data.get("faults") or []
    answer = raysim.what_if(job, ["preempt=1,notice=20s", "partition=1"], at=at)
    assert digest(answer.baseline) == digest(raysim.run(job, record=False))
    for (change, result), fault in zip(
        answer.branches.items(), ({"preempt": 1, "notice": "20s"}, {"partition": 1}), strict=True
    ):
        straight = job.with_({"faults": [*known, {"at": at, **fault}]})
        assert digest(result) == digest(raysim.run(straight, record=False)), change


def test_a_branch_without_a_change_is_the_run(root: Path) -> None:
    answer = raysim.what_if(scenario(root), {"nothing": {}}, at="17s")
    assert digest(answer.branches["nothing"]) == digest(answer.baseline)
    assert answer.table()[1] == []


@pytest.mark.parametrize("name", [FAILING, SHARED])
def test_saved_restored_and_continued_is_straight_through(
    root: Path, tmp_path: Path, name: str
) -> None:
    """With faults, several jobs, an autoscaler and spot nodes."""
    straight = raysim.run(scenario(root, name), record=False)
    path = raysim.save(scenario(root, name), tmp_path / "saved.yaml", at="90s")
    again = raysim.run(scenario(path.parent, path.name), record=False)
    assert digest(again) == digest(straight)
    assert again.summary["run"] == straight.summary["run"]


def test_a_saved_run_is_split_where_it_stands(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.yaml"
    first = raysim.what_if(scenario(root), CHANGES[:1], at="10s", save=path)
    again = raysim.what_if(raysim.load(path), CHANGES[:1])
    assert again.at_s == 10.0
    for one, other in ((first.baseline, again.baseline), *zip(
        first.branches.values(), again.branches.values(), strict=True
    )):  # fmt: skip
        assert digest(one) == digest(other)


def test_another_run_than_the_saved_one_is_refused_at_the_moment(
    root: Path, tmp_path: Path
) -> None:
    path = raysim.save(scenario(root), tmp_path / "saved.yaml", at="10s")
    with pytest.raises(ScenarioError, match=r"not the run that was saved: [\d,]+ events up to 10"):
        raysim.run(raysim.load(path, {"seed": 1}))
    older = path.read_text().replace(f"raysim: {raysim.__version__}", "raysim: 0.0.1")
    path.write_text(older.replace("events: ", "events: 1"))
    with pytest.raises(ScenarioError, match=r"made by raysim 0\.0\.1, this is"):
        raysim.run(raysim.load(path))


def test_a_changed_script_is_named(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "survive.py"
    text = (root / FAILING / "survive.py").read_text()
    script.write_text(text)
    (tmp_path / "scenario.yaml").write_text((root / FAILING / "scenario.yaml").read_text())
    path = raysim.save(raysim.load(tmp_path), tmp_path / "saved.yaml", at="10s")
    script.write_text(text.replace("range(", "range(1, ", 1))
    with pytest.raises(ScenarioError, match=r"survive\.py changed since"):
        raysim.run(raysim.load(path))


def test_an_autoscaler_s_bound_changes_from_the_moment_on(root: Path) -> None:
    """Fewer pods at most: nodes beyond are drained, jobs take longer."""
    answer = raysim.what_if(scenario(root, SHARED), ["cluster.spot.max_replicas=1"], at="2min")
    (fewer,) = answer.branches.values()
    assert answer.failed == {}
    assert digest(fewer) != digest(answer.baseline)
    assert (
        fewer.summary["run"]["virtual_seconds"]
        > answer.baseline.summary["run"]["virtual_seconds"] * 1.05
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("fail_nod=1", "no fault has this name; did you mean 'fail_node'?"),
        ("fail_node=7", "there is no node 7"),
        ("fail_node=one", "fail_node"),
        ("slow_links=1,share=3", "share"),
        ("notice=3s", "no fault has this name"),
        ("cluster.nodes=9", "a cluster that runs cannot take this"),
        ("cluster.nodez=9", "nodez"),
    ],
)
def test_changes_that_are_wrong_are_refused_before_anything_is_played(
    root: Path, change: str, said: str
) -> None:
    with pytest.raises(ScenarioError, match=said.replace("?", r"\?")):
        raysim.what_if(scenario(root), [change], at="10s")


def test_what_cannot_be_split_says_why(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="the run is over before, after"):
        raysim.what_if(scenario(root), CHANGES, at="3h")
    with pytest.raises(ScenarioError, match="one steady step, multiplied"):
        raysim.what_if(raysim.load(root / "scenarios/mlp_pipeline"), CHANGES, at="1min")
    with pytest.raises(ScenarioError, match="is no saved run: say when"):
        raysim.what_if(scenario(root), CHANGES)
    measured = scenario(root).with_({"script.compute": "measured"})
    with pytest.raises(ScenarioError, match="none can be saved"):
        raysim.save(measured, tmp_path / "saved.yaml", at="10s")
    with pytest.raises(ScenarioError, match="was made for 6 nodes of spot at most"):
        raysim.what_if(scenario(root, SHARED), ["cluster.spot.max_replicas=1000"], at="10s")


# ---- by hand -------------------------------------------------------------------------------------


def naps(ray: Any) -> int:
    @ray.remote(max_retries=3)
    def nap() -> int:
        time.sleep(60)
        return 1

    return sum(ray.get([nap.remote() for _ in range(48)]))


def by_hand(**config: Any) -> raysim.Cluster:
    return raysim.Cluster.build(nodes=3, config=config)


def test_by_hand_a_split_run_is_the_one_with_the_fault_said_beforehand() -> None:
    cluster = by_hand()

    def states() -> list[str]:
        return cluster.frame("nodes").state.tolist()

    ends = cluster.what_if(
        naps,
        {"lost": cluster.nodes[2].fail, "nothing": int, "cut": cluster.nodes[1].partition},
        at="90s",
        look=states,
    )
    for name, fault in (("baseline", None), ("lost", lambda c: c.nodes[2].fail),
                        ("cut", lambda c: c.nodes[1].partition)):  # fmt: skip
        straight = by_hand()
        if fault is not None:
            straight.sim.at("90s", fault(straight))
        value = straight.run(naps)
        end = ends[name]
        assert (end.value, end.now_s, end.digest) == (value, straight.now_s, straight.sim.digest)
        assert end.seen == straight.frame("nodes").state.tolist()
    assert (cluster.now_s, cluster.sim.digest) == (ends["baseline"].now_s, ends["baseline"].digest)
    assert ends["nothing"].now_s == cluster.now_s


def test_by_hand_a_branch_that_cannot_end_is_told_and_the_cluster_goes_on() -> None:
    cluster = by_hand()

    def breaks() -> None:
        raise OSError("no such cable")

    ends = cluster.what_if(naps, {"broken": breaks, "no head": cluster.nodes[0].fail}, at="90s")
    assert ends["broken"].failure == "OSError: no such cable"
    assert "DriverDied" in ends["no head"].failure or "process is gone" in ends["no head"].failure
    assert ends["baseline"].value == 48
    assert cluster.run(naps) == 48


def test_by_hand_a_moment_that_does_not_come() -> None:
    with pytest.raises(ScenarioError, match="the driver has ended before, at"):
        by_hand().what_if(naps, {"nothing": int}, at="1h")


def test_a_change_has_a_name_of_its_own(root: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be named 'baseline'"):
        by_hand().what_if(naps, {"baseline": int}, at="1s")
    with pytest.raises(ScenarioError, match="cannot be named 'baseline'"):
        raysim.what_if(scenario(root), {"baseline": {"fail_node": 1}}, at="1s")


def test_programs_that_started_threads_are_not_split() -> None:
    """They run outside of the emulated processes, and a fork would lose them."""
    import threading

    leave = threading.Event()
    cluster = by_hand()
    cluster.sim.at("30s", lambda: threading.Thread(target=leave.wait, name="exporter").start())
    try:
        with pytest.raises(ScenarioError, match=r"threads \(exporter\), which a fork"):
            cluster.what_if(naps, {"nothing": int}, at="90s")
    finally:
        leave.set()
