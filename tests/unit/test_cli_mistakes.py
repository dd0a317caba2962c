"""One thing given in place of another: what is said, and the command that was meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.cli import main

SCENARIOS = Path("scenarios").resolve()


@pytest.fixture(autouse=True)
def _things(in_tmp: Path) -> None:
    """Scenarios, a run, a plan, and files of others."""
    for folder, file in {
        "scenarios/first": "scenario.yaml", "scenarios/second": "scenario.yaml",
        "runs/first-abc123": "summary.json", "runs/plan-first-def456": "summary.json",
        "other": "cluster.yaml", "runs/plan-first-def456/best": "scenario.yaml",
    }.items():  # fmt: skip
        Path(folder).mkdir(parents=True)
        Path(folder, file).write_text("{}")
    Path("runs/plan-first-def456/trials.parquet").touch()
    for name, data in {
        "config.json": {"model_type": "llama"}, "ds.json": {"zero_optimization": {"stage": 2}},
        "my.json": {"raysim": "0.1.0", "verdict": {}},
    }.items():  # fmt: skip
        Path(name).write_text(json.dumps(data))
    Path("hjson.json").write_text('{// mine\n"train_batch_size": 4,}')
    Path("service.yaml").write_text("apiVersion: ray.io/v1\nkind: RayService\nspec: {}\n")
    Path("ray.yaml").write_text("apiVersion: ray.io/v1\nkind: RayCluster\nspec: {}\n")


def test_a_shell_script_is_run_by_what_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("import sys\nprint('trains', *sys.argv[1:])")
    Path("job.sh").write_text('python train.py --lr 1 "$@"\n')
    assert main(["run", "--quiet", "job.sh", "--", "--epochs", "2"]) == 0
    assert "trains --lr 1 --epochs 2\n" in capsys.readouterr().err  # beside the verdict
    assert main(["plan", "job.sh"]) == 2
    assert "`raysim run job.sh` runs what it starts" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "check", "plan"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("scenarios/frist", "no such file or folder; did you mean scenarios/first?"),
        ("frist", "no such file or folder; did you mean scenarios/first?"),
        ("zzz", "no such file or folder; scenarios here: scenarios/first, scenarios/second"),
        ("sbatch", "give the shell script itself: `raysim run job.sbatch`"),
        ("no/such", "no such file or folder; nor is there no"),
        ("abc123", "no such file or folder; abc123 is a run: `raysim show abc123` prints it"),
        ("scenarios", "the folder has no scenario.yaml; scenarios in it: scenarios/first, scen"),
        ("other", "the folder has no scenario.yaml; in it: cluster.yaml"),
        ("runs/first-abc123", "is a run's folder, not a scenario; `raysim show runs/first-abc123`"),
        ("runs/first-abc123", "`raysim run runs/first-abc123/scenario.resolved.yaml` replays it"),
        ("runs/plan-first-def456", "its choice is runs/plan-first-def456/best/scenario.yaml"),
        ("config.json", "is a Hugging Face config, not a scenario; `raysim memory config.json`"),
        ("config.json", "`raysim init NAME --from config.json` makes a scenario around it"),
        ("ds.json", "is a DeepSpeed configuration, not a scenario; `raysim init NAME --deepspeed"),
        ("hjson.json", "is a DeepSpeed configuration, not a scenario"),
        ("my.json", "is a run's summary; `raysim show . ` prints it".replace(". `", ".`")),
        ("ray.yaml", "is a cluster, not a scenario; `raysim init NAME --cluster ray.yaml`"),
        ("service.yaml", "`raysim init NAME --cluster service.yaml` makes one that points at both"),
    ],
)
def test_not_a_scenario(
    verb: str, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{given}   ")
    assert said in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("scenarios/first", "is a scenario, not a run; `raysim run scenarios/first` makes one"),
        ("ray.yaml", "is a scenario, not a run"),
        ("abc12", "did you mean abc123?"),
        ("zzz", "known: first-abc123, plan-first-def456"),
        ("other", "not a run (no summary.json in it)"),
    ],
)
def test_not_a_run(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("confg.json", "no such file; did you mean config.json?"),
        (str(SCENARIOS / "mlp_pipeline"), "is a folder; needs a Hugging Face config.json; in it"),
    ],
)
def test_not_a_config(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["rnu", "x"], "'run'"), (["run", "--quite", "x"], "--quiet"), (["pln"], "'plan'"),
     (["completion", "basch"], "'bash'")],
)  # fmt: skip
def test_typos_of_verbs_and_options(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "plan"])
def test_a_program_is_told_what_to_write_around_it(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("import ray\n")
    assert main([verb, "train.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("train.py   is a program, not a scenario; `raysim run train.py` runs it")
    assert "{cluster: {from: cluster.yaml}, jobs: [{script: train.py}]}" in said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("ray.serve.llm:build_openai_app", "is a Ray Serve LLM config, not a scenario; write one"),
        ("app:app", "is a Ray Serve config, not a scenario; a scenario points at it"),
    ],
)
def test_a_serve_config_is_told_from_a_scenario(
    path: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("serve.yaml").write_text(f"applications:\n- name: a\n  import_path: {path}\n")
    assert main(["run", "serve.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_a_name_of_the_hub_is_told_how_to_get_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "Qwen/Qwen3-32B"]) == 2
    said = capsys.readouterr().err
    assert "raysim asks no network: `hf download Qwen/Qwen3-32B config.json" in said
    assert main(["memory", "nowhere/config.json"]) == 2
    assert "nor is there nowhere" in capsys.readouterr().err
