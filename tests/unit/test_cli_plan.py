"""``raysim plan``: what is printed, written and said of wrong questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.cli import main

SCENARIO = str(Path("scenarios/bert_mrpc_zero3").resolve())
VARY = ["--vary", "train.zero_stage=1,3", "--vary", "train.micro_batch=[4, 8]"]


def test_the_choice_is_printed_and_written(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", SCENARIO, *VARY]) == 0
    printed = capsys.readouterr().out
    (folder,) = Path("runs").iterdir()
    best = json.loads((folder / "summary.json").read_text())["best"]
    assert printed.startswith(f"zero_stage {best['choice']['train.zero_stage']}, micro_batch 8:")
    assert "4 of 4 tried" in printed
    assert {p.name for p in (folder / "best").iterdir()} == {
        "scenario.yaml", "ds_config.json", "raycluster.yaml", "launch.sh",
    }  # fmt: skip
    assert max(len(line) for line in printed.splitlines()) <= 110


def test_the_same_command_reads_what_is_there(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    main(["plan", SCENARIO, *VARY])
    first = capsys.readouterr().out
    (part,) = Path("runs").glob("*/parts/*.parquet")
    written = part.stat().st_mtime_ns
    main(["plan", SCENARIO, *VARY])
    assert capsys.readouterr().out == first
    assert part.stat().st_mtime_ns == written


def test_nothing_meets_the_targets(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", SCENARIO, *VARY, "--subject-to", "seconds <= 0.001", "--top", "1"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("No configuration meets the targets.")
    assert "4 miss seconds <= " in printed


def test_json_is_the_summary(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", SCENARIO, *VARY, "--maximize", "tokens_per_s", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["objective"] == {"metric": "tokens_per_s", "direction": "maximize"}
    speeds = [t["metrics"]["tokens_per_s"] for t in summary["top"]]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--minimize", "speed"], "unknown metric 'speed'"),
        (["--minimize", "usd", "--maximize", "mfu"], "not both"),
        (["--subject-to", "days < soon"], "days < soon"),
        (["--vary", "train.micro_batsh=1,2"], "unknown key 'micro_batsh'"),
        (["--vary", "train.micro_batch="], "expected a count"),
    ],
)
def test_wrong_questions_are_the_users(
    flags: list[str], said: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
):
    given = flags if "--vary" in flags else [*VARY, *flags]
    assert main(["plan", SCENARIO, *given]) == 2
    assert said in capsys.readouterr().err


def test_a_program_is_planned_by_the_size_of_its_cluster(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    program = str(Path(SCENARIO).parent / "ray_map_reduce")
    sizes = "cluster.worker.replicas=1,2"
    assert main(["plan", program, "--vary", sizes, "--minimize", "seconds"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nodes 2:")
    assert "shuffled in" not in printed  # by the program's own print
    (folder,) = in_tmp.glob("runs/plan-*")
    assert "python shuffle.py" in (folder / "best" / "launch.sh").read_text()
