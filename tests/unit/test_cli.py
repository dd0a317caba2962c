"""The command line: what goes to stdout, to stderr, to the folder, and the exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raysim.cli import main
from raysim.errors import Location, Problem, ScenarioError
from raysim.results.result import Result
from tests.unit.result_cases import recording, summary

Simulate = Callable[..., Result]


@dataclass
class FakeScenario:
    seed: int = 5
    changes: dict[str, Any] = field(default_factory=dict)

    def with_(self, changes: dict[str, Any]) -> FakeScenario:
        return FakeScenario(changes=changes)

    def resolved(self) -> dict[str, Any]:
        return {"name": "small", **self.changes}


@pytest.fixture
def found() -> dict[str, Any]:
    """Changes to the summary that the fake simulation finds, and what it was asked."""
    return {}


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, in_tmp: Path, found: dict[str, Any]) -> dict[str, Any]:
    """``raysim run`` with a simulation that answers at once; the last call's arguments."""
    asked: dict[str, Any] = {}
    for name in ("x", "my scenario"):
        Path(name).mkdir()
        Path(name, "scenario.yaml").touch()

    def run(scenario: FakeScenario, **arguments: Any) -> Result:
        asked.update(arguments, scenario=scenario)
        records = recording() if arguments["record"] else None
        return Result(summary=summary(**found), records=records, scenario=scenario)

    module = ModuleType("raysim.run")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raysim.run", module)
    load = ModuleType("raysim.scenario.load")
    load.load = lambda path, changes: FakeScenario(changes=changes)  # type: ignore[attr-defined]
    load.Scenario = FakeScenario  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raysim.scenario.load", load)
    return asked


def test_run_prints_the_report_and_where_it_was_written(
    door: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "x"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Fits: ")
    assert "Wrote       runs/small-abc123/  report.html  trace.pftrace" in out
    assert err == ""
    assert Path("runs/small-abc123/summary.json").is_file()


def test_json_is_the_file_and_nothing_else(
    door: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "x", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (summary(), "")
    assert out == Path("runs/small-abc123/summary.json").read_text(encoding="utf-8")


def test_quiet_prints_the_verdict(door: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "x", "-q"]) == 0
    assert capsys.readouterr().out == summary()["verdict"]["text"] + "\n"


def test_flags_reach_the_simulation(door: dict[str, Any]) -> None:
    main(
        ["run", "x", "--seed", "7", "--check", "--no-trace", "--set", "a.b=[1, 2]", "--set", "c=2h"]
    )
    assert door["scenario"].changes == {"a.b": [1, 2], "c": "2h"}
    assert (door["seed"], door["check"], door["record"]) == (7, True, False)


def test_until_keeps_the_steps_that_end_by_then(
    door: dict[str, Any], found: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found["run"] = {"seconds": 1100.0, "startup_seconds": 100.0, "steps": 100}
    assert main(["run", "x", "-q", "--until", "5min"]) == 0
    assert door["scenario"].changes["train.steps"] == 20
    assert main(["run", "x", "-q", "--until", "3h"]) == 0
    assert door["scenario"].changes == {}
    capsys.readouterr()
    assert main(["run", "x", "-q", "--until", "105s"]) == 2
    assert "the first step ends only after 110 s" in capsys.readouterr().err
    assert main(["run", "x", "-q", "--until", "soon"]) == 2


def test_out_names_the_folder_and_the_trace_its_format(door: dict[str, Any]) -> None:
    assert main(["run", "x", "-o", "mine", "--trace-format", "chrome"]) == 0
    assert {"trace.json.gz", "frames", "report.html"} <= {p.name for p in Path("mine").iterdir()}
    assert main(["run", "x", "-o", "mine", "--no-trace"]) == 0
    assert {p.name for p in Path("mine").iterdir() if p.is_file()} == {
        "report.html", "scenario.resolved.yaml", "summary.json", "summary.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": [{"text": "t", "passed": False, "value": 1.0, "value_text": "1"}]},
        {"verdict": {"fits": False, "text": "Does not fit."}},
    ],
)
def test_exit_1_when_a_target_is_missed_or_it_does_not_fit(
    door: dict[str, Any], found: dict[str, Any], changes: dict[str, Any]
) -> None:
    found.update(changes)
    assert main(["run", "x"]) == 1


def break_run(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(scenario: FakeScenario, **arguments: Any) -> Result:
        raise error

    monkeypatch.setattr(sys.modules["raysim.run"], "run", run)


def test_exit_2_is_one_line_per_problem_and_no_traceback(
    door: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = Location(file="s.yaml", line=6, column=3)
    problems = [Problem(message="unknown key", where=where, key="x"), Problem(message="also")]
    break_run(monkeypatch, ScenarioError(problems))
    assert main(["run", "x"]) == 2
    assert capsys.readouterr() == ("", "s.yaml:6:3   x: unknown key\nalso\n")


def test_exit_3_has_traceback_seed_and_the_command_to_replay(
    door: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_run(monkeypatch, AssertionError("7 bytes sent, 6 received"))
    assert main(["run", "my scenario", "--set", "a=1"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    for said in (
        "Traceback", "AssertionError: 7 bytes sent, 6 received", "seed 5",
        "replay with: raysim run 'my scenario' --set a=1",
    ):  # fmt: skip
        assert said in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"], ["run", "x", "--nonsense"], ["run", "x", "--seed", "-1"], ["simulate", "x"],
        ["run", "x", "--set", "novalue"], ["run", "x", "--set", "=1"], ["check"],
        ["run", "x", "--trace-format", "svg"], ["check", "--explain", "train.micro_batsh"],
        ["catalog", "planets"], ["catalog", "gpus", "H1000"],
        ["show", "nowhere"], ["show"], ["open"],
    ],
)  # fmt: skip
def test_wrong_flags_are_the_users_error(
    door: dict[str, Any], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_written_is_the_users_error_and_the_answer_is_said(
    door: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("a file")
    assert main(["run", "x", "-o", "taken"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("Fits: ")
    assert "Wrote" not in out
    assert err.startswith("cannot write taken: ")


def test_show_finds_a_run_by_path_name_id_or_as_the_last(
    door: dict[str, Any], found: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "x", "-q"])
    found.update(run_id="def456", verdict={"text": "The second."})
    main(["run", "x", "-q"])
    os.utime("runs/small-abc123/summary.json", (1, 1))
    for name, first in {
        "runs/small-abc123": "Fits", "small-abc123": "Fits", "abc123": "Fits",
        "runs/small-abc123/summary.json": "Fits", "def456": "The second.", "": "The second.",
    }.items():  # fmt: skip
        capsys.readouterr()
        assert main(["show", name] if name else ["show"]) == 0
        assert capsys.readouterr().out.startswith(first), name


def test_show_table_has_the_columns_of_deepspeeds_summary(
    door: dict[str, Any], found: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found["collectives"] = [
        {
            "op": "all_gather", "what": "forward parameters", "group": "dp", "group_ranks": 16,
            "count": 4, "bytes": 4 * 2**20, "seconds": 0.4, "bus_bytes_per_s": 340e9,
            "algorithm": "ring", "protocol": "Simple",
        }
    ]  # fmt: skip
    main(["run", "x", "-q"])
    capsys.readouterr()
    assert main(["show", "--table", "collectives"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "op", "what", "group", "ranks", "message", "count", "total", "average", "busbw",
        "algorithm",
    ]  # fmt: skip
    for cell in ("all_gather", "forward parameters", "1.00 MiB", "400 ms", "100 ms", "340 GB/s"):
        assert cell in row


def test_show_lists_links_and_what_the_step_rests_on(
    door: dict[str, Any], found: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found["links"] = [
        {
            "link": "node-0/nic-0/out", "bytes_per_s": 46e9, "bytes": 2**30, "mean_frac": 0.074,
            "peak_frac": 0.887,
        }
    ]  # fmt: skip
    found["sensitivity"] = [{"input": "GPU memory bandwidth", "elasticity": -0.17}]
    main(["run", "x", "-q"])
    capsys.readouterr()
    assert main(["show", "--table", "links"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split() == [
        "node-0/nic-0/out",
        "46.0",
        "GB/s",
        "1.00",
        "GiB",
        "7.4",
        "%",
        "88.7",
        "%",
    ]
    assert main(["show", "--table", "sensitivity"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "-0.170"


def test_show_tree_folds_equal_layers(
    door: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(scenario: FakeScenario, **arguments: Any) -> Result:
        records = recording(steps=0)
        track = ("node-0", "gpu-0", "compute")
        names = ["model.embed", *(f"model.layers.{n}" for n in range(12)), "lm_head"]
        for n, name in enumerate(names):
            args = {"step": 1}
            records.span(track, f"{name} forward", "forward", n * 10, n * 10 + 10, args)
            records.span(track, f"{name} backward", "backward", 500 + n * 20, 520 + n * 20, args)
        return Result(summary=summary(), records=records, scenario=scenario)

    monkeypatch.setattr(sys.modules["raysim.run"], "run", run)
    main(["run", "x", "-q"])
    capsys.readouterr()
    assert main(["show", "--tree"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "llama 140 ns - 280 ns 100.0 %",
        "model 130 ns - 260 ns 92.9 %",
        "embed 10 ns - 20 ns 7.1 %",
        "layers 120 ns - 240 ns 85.7 %",
        "0-11 (12 x) 120 ns - 240 ns 85.7 %",
        "lm_head 10 ns - 20 ns 7.1 %",
    ]


def test_open_prints_the_page_and_asks_the_browser(
    door: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    main(["run", "x", "-q"])
    capsys.readouterr()
    assert main(["open"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_file()
    assert opened == [path.as_uri()]


def test_catalog_lists_with_basis_and_explains_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "gpus"]) == 0
    listed = capsys.readouterr().out
    assert "datasheet" in next(s for s in listed.splitlines() if s.startswith("H100-SXM-80GB"))
    assert main(["catalog", "gpus", "H100-SXM-80GB"]) == 0
    detail = capsys.readouterr().out
    assert "memory_bytes_per_s" in detail
    assert "NVIDIA H100" in detail


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("train.micro_batch", "Samples per GPU and micro-step."),
        ("jobs.train.data.eval_samples", "Samples evaluated"),
        ("cluster.hardware.gpu-worker.node", "Catalog name"),
        ("cluster.fabric.kind", "star, rail_fat_tree, fat_tree"),
        ("cluster", "hardware"),
    ],
)
def test_explain_says_what_a_key_means(
    key: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--explain", key]) == 0
    assert said in capsys.readouterr().out


def test_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    training, program = (schema["$defs"][o["$ref"].rpartition("/")[2]] for o in schema["anyOf"])
    assert {"cluster", "model", "jobs", "targets"} <= training["properties"].keys()
    assert {"cluster", "ray", "jobs", "faults", "until"} <= program["properties"].keys()


def on_a_terminal(arguments: list[str], columns: int, **environment: str) -> str:
    """What the command prints when stdout is a terminal."""
    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "CI"}}
    env |= {"COLUMNS": str(columns), "TERM": "xterm-256color", **environment}
    code = f"import sys; from raysim.cli import main; sys.exit(main({arguments!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=env) as p:
        os.close(slave)
        chunks = []
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        os.close(master)
    assert p.returncode == 0
    return b"".join(chunks).decode()


@pytest.fixture
def stored(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(root))
    return Result(summary=summary(), records=None).write(in_tmp / "stored")


def test_colour_and_width_belong_to_the_terminal(stored: Path) -> None:
    wide = on_a_terminal(["show", str(stored)], 140)
    narrow = on_a_terminal(["show", str(stored)], 90)
    plain = on_a_terminal(["show", str(stored)], 140, NO_COLOR="1")
    assert "\x1b[1;32mFits" in wide
    assert not any(f"\x1b[{colour}" in plain for colour in ("1;3", "3", "2;3"))
    assert narrow.count("\N{BOX DRAWINGS LIGHT HORIZONTAL}") < wide.count(
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
    )


def test_a_pipe_gets_plain_text_and_ascii_where_it_must(stored: Path) -> None:
    code = f"import sys; from raysim.cli import main; sys.exit(main(['show', {str(stored)!r}]))"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert "###" in done.stdout
