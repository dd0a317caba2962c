"""``raysim plan``: what is printed, written and said of wrong questions."""

from __future__ import annotations

import html
import json
import shlex
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
    aim = {"metric": "tokens_per_s", "direction": "maximize", "quantile": None, "likely": 0.8}
    assert summary["objective"] == aim
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
        (["--out", "/dev/null/plans"], "cannot write /dev/null/plans: Not a directory"),
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


def test_the_answer_says_how_sure_it_is(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    space = ["--vary", "train.micro_batch=4,8", "--vary", "train.data.dataset=a,b"]
    assert main(["plan", SCENARIO, *space, "--minimize", "usd", "--quantile", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "least usd at the 90% quantile of its interval" in printed
    assert "nine of ten such jobs would measure $" in printed
    assert "cannot be told from the first" in printed
    assert "No effect   dataset" in printed


def test_energy_is_a_metric_and_shares_may_have_a_space(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
):
    space = ["--vary", "train.micro_batch=4,8", "--subject-to", "gpu_mem_peak <= 90 %"]
    assert main(["plan", SCENARIO, *space, "--minimize", "kwh", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["targets"] == ["gpu_mem_peak <= 90 %"]
    assert summary["best"]["metrics"]["kwh"] == min(t["metrics"]["kwh"] for t in summary["top"])


def test_an_interrupted_plan_says_so(in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    def interrupted(task, points):
        yield next(map(task, points))
        raise KeyboardInterrupt

    monkeypatch.setattr("raysim.planner.pool.runner_of", lambda *_, **__: interrupted)
    assert main(["plan", SCENARIO, *VARY, "--maximize", "tokens_per_s"]) == 130
    printed = capsys.readouterr().out
    assert printed.startswith("Interrupted: the same command goes on.")
    assert "1 of " in printed


def test_a_plan_has_a_page_that_open_opens(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    command = ["plan", SCENARIO, *VARY, "--subject-to", "usd <= 2", "--max-gpus", "4"]
    assert main(command) == 0
    assert "report.html" in capsys.readouterr().out
    (page,) = (p.resolve() for p in Path("runs").glob("plan-*/report.html"))
    text = page.read_text(encoding="utf-8")
    assert main(["open"]) == 0
    assert opened == [page.as_uri()]
    main(command)
    assert page.read_text(encoding="utf-8") == text
    said = text.partition('id="command" tabindex="0">')[2].partition("</pre>")[0]
    words = shlex.split(html.unescape(said))
    assert words[:3] == ["raysim", "plan", SCENARIO]
    assert main(words[1:]) == 0
    assert page.read_text(encoding="utf-8") == text


def test_keys_that_decide_are_printed(in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    main(["plan", SCENARIO, *VARY])
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("Decided by"))
    assert "zero_stage" in line
    assert "micro_batch" in line


def test_nothing_fits_and_what_was_not_tried_is_named(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
):
    large = ["--set", "train.micro_batch=4096", "--vary", "train.zero_stage=1,3"]
    assert main(["plan", SCENARIO, *large]) == 1
    printed = capsys.readouterr().out
    assert "2 exceed GPU or host memory" in printed
    assert "Not tried   --vary train.activation_checkpointing=none,full" in printed
    assert "tensor parallelism" not in printed, "nothing ran, whatever it is"
    main(["plan", SCENARIO, *large, "--vary", "train.activation_checkpointing=none,full"])
    assert "Not tried" not in capsys.readouterr().out


def test_a_plan_of_sizes_says_how_other_machines_are_tried(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
):
    sizes, kinds = "cluster.gpu-group.replicas=1,2", "cluster.gpu-group.node=g4dn.12xlarge"
    assert main(["plan", SCENARIO, "--vary", sizes, "--set", "train.workers=4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    other = f"--vary cluster.gpu-group.node=any --vary {sizes}"
    assert "Not tried other kinds of node (plan best/scenario.yaml)" in printed
    assert other in printed
    main(["plan", SCENARIO, "--vary", sizes, "--vary", kinds, "--set", "train.workers=4"])
    assert "Not tried" not in capsys.readouterr().out
