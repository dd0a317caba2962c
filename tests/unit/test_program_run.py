"""Ways in which a driver ends, what is kept of them, and what surrounds a program."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.kernel.simulation import Simulation
from raysim.raycore.tasks import SPEC_BYTES, TaskSpec
from raysim.scenario.script import script_scenario
from tests.unit.program_cases import SQUARES, run, script


def test_a_program_finishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, SQUARES)
    assert capsys.readouterr().out == "10416\n"
    assert result.program is not None
    assert result.program.output == "10416\n"
    assert result.summary["program"]["exit"] == "ok"
    assert result.summary["tasks"]["by_state"] == {"FINISHED": 32}
    assert 4.0 < result.summary["run"]["seconds"] < 8.0  # 32 tasks of 2 s on 16 CPUs


def test_an_exception_has_the_traceback_that_python_prints(tmp_path: Path) -> None:
    result = run(tmp_path, "import ray\nray.init()\ndef f():\n    raise ValueError('no')\nf()\n")
    told = result.summary["program"]
    path = tmp_path / "main.py"
    assert told["traceback"].splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 5, in <module>',
        "    f()",
        f'  File "{path}", line 4, in f',
        "    raise ValueError('no')",
        "ValueError: no",
    ]
    assert (told["exit"], told["exit_code"], told["message"]) == ("exception", 1, "ValueError: no")
    assert result.summary["verdict"]["ok"] is False


def test_an_exception_of_a_task_names_the_task(tmp_path: Path) -> None:
    text = "import ray\n@ray.remote\ndef f(): return 1 / 0\nray.get(f.remote())\n"
    told = run(tmp_path, text).summary["program"]
    assert told["message"] == "ZeroDivisionError: division by zero (in f)"


def test_an_exit_code_is_kept(tmp_path: Path) -> None:
    told = run(tmp_path, "import sys, ray\nray.init()\nsys.exit(3)\n").summary["program"]
    assert (told["exit"], told["exit_code"]) == ("exit", 3)


def test_a_program_is_stopped_where_it_is_told_and_keeps_what_it_did(tmp_path: Path) -> None:
    result = run(tmp_path, SQUARES, until="4s")
    summary = result.summary
    assert (summary["program"]["exit"], summary["verdict"]["ok"]) == ("until", True)
    assert summary["run"] == {"seconds": None, "virtual_seconds": 4.0, "text": "4.00 s"}
    assert 0 < summary["tasks"]["finished"] < 32
    assert "ray.get" in summary["program"]["message"]


def test_what_hangs_says_where_and_why(tmp_path: Path) -> None:
    text = "import ray\n@ray.remote(num_gpus=1)\ndef f(): pass\nray.get(f.remote())\n"
    summary = run(tmp_path, text, until="30s").summary
    assert summary["pending"]["causes"] == {"infeasible": 1}
    assert "needs 1 CPU, 1 GPU" in summary["pending"]["examples"][0]
    assert summary["program"]["message"] == "ray.get(f.remote())"


def test_placement_groups_without_room_are_said(tmp_path: Path) -> None:
    text = """import ray
from ray.util.placement_group import placement_group
whole = [placement_group([{"CPU": 500}] * 2, strategy="SPREAD") for _ in range(3)]
ray.get([group.ready() for group in whole])
"""
    made = run(tmp_path, text, until="60s")
    pending = made.summary["pending"]
    assert pending["groups"] == 3
    assert pending["examples"][0].startswith(
        "3 placement groups (SPREAD) of 1000 CPU each wait for room: "
    )
    assert "3 placement groups" in str(made)


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("import ray\nimport ray.llm\n", 2, "ray.llm"),
        ("import ray\n@ray.remote\ndef f():\n    import ray.llm\nray.get(f.remote())\n", 5,
         "ray.llm"),
        ("import subprocess\n\nsubprocess.run(['ray', 'stop'])\n", 3,
         "Ray's command line (ray stop)"),
    ],
)  # fmt: skip
def test_what_is_not_emulated_is_one_line_that_names_it(
    tmp_path: Path, text: str, line: int, name: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, text)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{tmp_path / 'main.py'}:{line}")
    assert problem.message.startswith(f"{name} is not emulated by raysim.")
    assert "\n" not in problem.message


def test_the_arguments_are_the_scripts(tmp_path: Path) -> None:
    assert run(tmp_path, SQUARES, args=["3"]).summary["tasks"]["total"] == 3


def test_measured_time_is_kept_and_replayed(tmp_path: Path) -> None:
    text = (
        "import ray\nray.init()\n@ray.remote\ndef f(n):\n    return sum(range(n))\n"
        "ray.get([f.remote(300_000) for _ in range(4)])\n"
    )
    scenario = script_scenario(script(tmp_path, text))
    measured = raysim.run(scenario)
    folder = measured.write(tmp_path / "first")
    busy = measured.summary["tasks"]["by_function"][0]["mean_seconds"]
    assert busy > 0.001
    assert (folder / "compute.csv").read_text().startswith("function,arguments,slice,")
    again = raysim.run(scenario.with_({"script.compute": str(folder / "compute.csv")}))
    third = raysim.run(scenario.with_({"script.compute": str(folder / "compute.csv")}))
    assert again.summary["compute"]["mode"] == "table"
    assert again.summary["simulation"]["digest"] == third.summary["simulation"]["digest"]
    assert again.summary["tasks"]["by_function"][0]["mean_seconds"] == pytest.approx(busy, rel=0.2)


def test_a_result_can_be_pickled(tmp_path: Path) -> None:
    result = run(tmp_path, SQUARES)
    copy = pickle.loads(pickle.dumps(result))
    assert copy.summary == result.summary
    assert copy.table("tasks").equals(result.table("tasks"))


def test_nodes_are_added_when_the_cluster_file_lets_them(tmp_path: Path) -> None:
    grows = """
provider: {type: aws}
max_workers: 3
upscaling_speed: 10
head_node_type: head
available_node_types:
  head: {node_config: {InstanceType: m5.large}}
  worker: {node_config: {InstanceType: m5.2xlarge}, min_workers: 0, max_workers: 3}
"""
    text = SQUARES.replace("@ray.remote", "@ray.remote(num_cpus=4)")
    summary = run(tmp_path, text, cluster=grows).summary
    assert summary["program"]["exit"] == "ok"
    assert summary["cluster"]["autoscaled"] is True
    assert {g["name"]: (g["count"], g["max_count"]) for g in summary["cluster"]["groups"]} == {
        "head": (1, 1), "worker": (0, 3),
    }  # fmt: skip
    worker = next(row for row in summary["utilisation"] if row["group"] == "worker")
    assert 1 <= worker["nodes"] <= 3
    assert summary["time"][0]["key"] == "infeasible"  # until the first machine has come


HANGS = "import ray\n@ray.remote(num_gpus=1)\ndef f(): pass\nray.get(f.remote())\n"


@pytest.mark.parametrize("more", ["", "head_node_type: head\n"])
def test_what_can_never_go_on_is_found_out_soon(tmp_path: Path, more: str) -> None:
    grows = (
        "provider: {type: aws}\nmax_workers: 1\n" + more + "available_node_types:\n"
        "  head: {node_config: {InstanceType: m5.large}}\n"
        "  worker: {node_config: {InstanceType: m5.2xlarge}, min_workers: 0, max_workers: 1}\n"
    )
    result = run(tmp_path, HANGS, **({"cluster": grows} if more else {}))
    summary = result.summary
    assert (summary["program"]["exit"], summary["program"]["message"]) == (
        "hang", "ray.get(f.remote())",
    )  # fmt: skip
    assert summary["run"]["virtual_seconds"] < 2  # when the last thing happened
    assert result.program is not None
    assert result.program.end_ns < 2e9


@pytest.mark.parametrize(
    "wait",
    [
        "ray.get(late.remote())",  # one task sleeps for long
        "ray.wait([f.remote()], timeout=2e4)",
        "import time; time.sleep(2e4)",
        "while time.time() < end: ray.wait([ref], timeout=300)",  # it looks again and again
    ],
)
def test_what_takes_long_is_no_hang(tmp_path: Path, wait: str) -> None:
    text = (
        "import time\nimport ray\nray.init()\nend = time.time() + 2e4\n"
        "@ray.remote(num_gpus=1)\ndef f(): pass\n"
        "@ray.remote\ndef late(): time.sleep(2e4)\nref = f.remote()\n"
    )
    summary = run(tmp_path, text + wait + "\n").summary
    assert summary["program"]["exit"] == "ok"
    assert 2e4 < summary["run"]["seconds"] < 2.1e4


def test_what_waits_for_a_fault_to_come_is_no_hang(tmp_path: Path) -> None:
    text = (
        "import asyncio, ray\nray.init()\n"
        "far = next(n for n in ray.nodes() if 'node:__internal_head__' not in n['Resources'])\n"
        "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pin\n"
        "@ray.remote(scheduling_strategy=Pin(far['NodeID'], False))\nclass A:\n"
        "    async def f(self):\n        await asyncio.Event().wait()\n"
        "a = A.remote()\ntry:\n    ray.get(a.f.remote())\n"
        "except ray.exceptions.RayActorError:\n    print('died')\n"
    )
    summary = run(tmp_path, text, changes={"faults": [{"at": "3h", "fail_node": 1}]}).summary
    assert summary["program"]["exit"] == "ok"
    assert 10_800 < summary["run"]["seconds"] < 10_900  # health checks find the node dead


def worlds() -> int:
    """Simulations that are still there."""
    gc.collect()
    # `type`, for torch has objects whose `__class__` warns.
    return sum(type(thing) is Simulation for thing in gc.get_objects())


def test_nothing_stays_of_a_run_whose_program_knows_an_actor(tmp_path: Path) -> None:
    """Its class is known by number where handles arrive; the class knows the program's globals."""
    before = worlds()
    text = (
        "import ray\n@ray.remote\nclass A:\n    def f(self):\n        return 7\na = A.remote()\n"
        "@ray.remote\ndef ask(actor):\n    return ray.get(actor.f.remote())\n"
        "assert ray.get(ask.remote(a)) == 7\n"
    )
    kept = run(tmp_path, text)
    assert worlds() <= before, "nor does what is kept of it hold the cluster"
    assert kept.summary["program"]["exit"] == "ok"


def test_nothing_stays_of_a_job_whose_actors_were_given_live_objects(root: Path) -> None:
    """Its trials' arguments know the experiment, and that the process that runs it."""
    before = worlds()
    scenario = raysim.load(root / "scenarios/asha_sweep")
    kept = raysim.run(scenario.with_({"jobs.0.tune.trials": 4}))
    assert worlds() <= before
    assert kept.program is not None
    specs = [row.detail for row in kept.program.rows if isinstance(row.detail, TaskSpec)]
    assert max(spec.size_bytes for spec in specs) > SPEC_BYTES, "what arguments weigh is known"


HEAD_LOST = {"faults": [{"at": "22s", "fail_node": 0}]}


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("ray_node_failure", {}),  # workers wait on nodes that are lost
        ("ray_node_failure", HEAD_LOST),  # the driver itself
        ("ray_shared_cluster", {}),  # jobs leave processes that live to the end
    ],
)
def test_nothing_stays_of_a_run(root: Path, scenario: str, changes: dict[str, Any]) -> None:
    """What waits to the end holds all of the run, where no collector sees it."""
    before = worlds()
    raysim.run(raysim.load(root / "scenarios" / scenario, changes=changes), record=False)
    assert worlds() <= before  # the last one of another test may have gone meanwhile


@pytest.mark.parametrize(
    "last_words",
    [
        "ray.get(ask.remote())",
        "time.sleep(3600)",
        "os._exit(7)",
        "swallow()",
    ],
)
def test_what_waits_at_the_end_is_unwound_and_heard_no_more(
    tmp_path: Path, last_words: str
) -> None:
    """As if killed: its ``finally`` asks nothing of the cluster, the machine or its clock."""
    text = f"""
import os, time
import ray

@ray.remote
def ask():
    return 1

def swallow():
    while True:
        try:
            ray.get(ask.remote())
        except BaseException:
            print("again")

@ray.remote
def waits():
    try:
        time.sleep(1000)
    finally:
        print("over")
        {last_words}

ray.init()
left = waits.remote()
time.sleep(5)
print("done")
"""
    result = run(tmp_path, text)
    assert result.program is not None
    assert result.program.output == "done\n"
    assert result.summary["program"]["exit"] == "ok"
    assert result.summary["tasks"]["by_state"].get("FINISHED", 0) == 0
