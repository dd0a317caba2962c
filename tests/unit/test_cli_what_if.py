"""``raysim what-if``: what is printed, what is said of what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.branching import Branches
from raysim.cli import main

JOB = "scenarios/ray_shuffle_spills"
HERE = ("what-if", JOB, "--at", "10s")


@pytest.fixture(autouse=True)
def at_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def test_a_column_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*HERE, "--change", "fail_node=1", "--change", "slow_links=0,share=0.1"]) == 0
    head, names, seconds, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("ray-shuffle-spills: 86.1 s, split at 10.0 s; 2 what-ifs in ")
    assert names.split() == ["baseline", "fail_node=1", "slow_links=0,share=0.1"]
    assert seconds.split()[:3] == ["seconds", "86.1", "s"]
    assert "(+5.5%)" in seconds


def test_summaries_for_scripts_and_verdicts_for_people_in_a_hurry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*HERE, "--change", "fail_node=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lost = found["branches"]["fail_node=1"]["run"]["virtual_seconds"]
    assert found["at_seconds"] == 10.0
    assert lost > 1.5 * found["baseline"]["run"]["virtual_seconds"]
    assert main([*HERE, "--change", "fail_node=1", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["baseline", "fail_node=1"]


def test_saved_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "ten.yaml")
    assert main([*HERE, "--save", path]) == 0
    assert capsys.readouterr().out == f"Wrote {path}\n"
    assert main(["what-if", path, "--change", "fail_node=1", "-q"]) == 0
    assert main(["run", path, "-q", "--out", str(tmp_path / "run")]) == 0
    assert main(["run", path, "-q", "--set", "seed=5", "--out", str(tmp_path / "other")]) == 2
    assert "not the run that was saved" in capsys.readouterr().err


def test_a_branch_without_a_result_is_told_and_the_others_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from raysim.workloads.moment import Change, Running

    apply = Running.apply

    def some_break(self: Running, change: Change) -> None:
        if any(fault.kind == "fail_node" for fault in change.faults):
            raise RuntimeError("no such thing")
        apply(self, change)

    monkeypatch.setattr(Running, "apply", some_break)
    assert main([*HERE, "--change", "fail_node=1", "--change", "slow_links=0,share=0.1"]) == 1
    said = capsys.readouterr()
    assert "fail_node=1: no result: RuntimeError: no such thing" in said.out
    assert "slow_links=0,share=0.1" in said.out.splitlines()[1]
    assert "in some_break" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([JOB, "--at", "10s"], "say what happens"),
        ([JOB, "--change", "fail_node=1"], "say when"),
        ([JOB, "--at", "3x", "--change", "fail_node=1"], "--at 3x"),
        (
            [JOB, "--at", "10s", "--change", "fail_node=9"],
            "--change fail_node=9: there is no node 9",
        ),
        (["scenarios/mlp_pipeline", "--at", "1s", "--change", "fail_node=0"], "one steady step"),
        ([JOB, "--at", "9h", "--change", "fail_node=1"], "the run is over before"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_where_there_is_no_fork(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.delattr(os, "fork")
    assert Branches([]).names == ()
    assert main([*HERE, "--change", "fail_node=1"]) == 2
    assert "has no fork" in capsys.readouterr().err


def test_times_of_the_stopwatch_are_said_to_be_noisy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["what-if", "scenarios/ray_node_failure", "--at", "10s", "--change", "fail_node=1"]
    assert main([*job, "--set", "script.compute=measured"]) == 0
    assert "timed in each branch anew" in capsys.readouterr().out
    assert main(job) == 0
    assert "timed" not in capsys.readouterr().out
