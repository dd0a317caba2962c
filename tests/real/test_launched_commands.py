"""``raysim run`` of a launcher's command line: what is printed, noted and written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import raysim
from raysim.cli import main
from raysim.errors import ScenarioError

pytestmark = pytest.mark.real
pytest.importorskip("torch")
PROGRAMS = Path(__file__).parents[1] / "programs" / "launched"


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    """The scripts, as a user has them, and a cluster."""
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, in_tmp)
    (in_tmp / "two.yaml").write_text("nodes: 2\nnode: p4d.24xlarge\n")
    return in_tmp


def test_a_launcher_s_words_need_no_dashes_before_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "run --cluster two.yaml -q --out here torchrun --nnodes 2 --nproc-per-node 4"
    assert main([*line.split(), "linear_ddp.py", "--samples", "1024"]) == 0
    out, err = capsys.readouterr()
    assert "rank 7 of 8: loss nan" in err  # the verdict stands alone
    assert "4 steps on 8 ranks of 2 nodes" in out
    summary = json.loads((folder / "here" / "summary.json").read_text())
    assert summary["program"]["launcher"] == "torchrun --nnodes 2 --nproc-per-node 4"
    assert summary["program"]["script"] == "torchrun linear_ddp.py"
    assert summary["time"] == []
    gpus = summary["utilisation"][0]["resources"]["GPU"]
    assert gpus["busy_seconds"] > 0
    assert 0 < gpus["frac"] < 0.5  # 8 of 16, after they have started
    assert summary["energy"]["kwh"] > 0


def test_what_was_run_replays_from_its_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "run -q --out here torchrun --nproc-per-node 2 linear_ddp.py"
    assert main(line.split()) == 0
    first = capsys.readouterr().out
    assert main(["run", "-q", "--out", "again", "here/scenario.resolved.yaml"]) == 0
    assert capsys.readouterr().out == first
    one, two = (json.loads(Path(f, "summary.json").read_text()) for f in ("here", "again"))
    assert one["simulation"]["digest"] == two["simulation"]["digest"]


def test_a_bare_script_that_imports_torch_distributed_runs_on_all_gpus(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--cluster", "two.yaml", "linear_ddp.py", "--", "--samples", "512"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 steps on 16 ranks of 2 nodes" in printed
    assert "it imports torch.distributed and no ray; run as `torchrun --nnodes 2" in printed
    assert "Tasks" not in printed


def test_a_bare_script_that_imports_deepspeed_is_deepspeed_s(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"train_micro_batch_size_per_gpu": 8, "fp16": {"enabled": True}}
    (folder / "ds.json").write_text(json.dumps(settings))
    assert main(["run", "residual_zero.py", "--", "--deepspeed_config", "ds.json"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 steps, args.local_rank=0" in printed
    assert "run as `deepspeed residual_zero.py` would" in printed
    assert "no --cluster given; taken is one hgx-h100-8 (8 x H100-SXM-80GB)" in printed


def test_a_scenario_names_its_launcher(folder: Path) -> None:
    (folder / "scenario.yaml").write_text(
        "cluster: {nodes: 1, node: dgx-h100}\n"
        "jobs:\n- script: {path: linear_ddp.py, launcher: torchrun --nproc-per-node 4}\n"
    )
    result = raysim.run(raysim.load(folder))
    assert "4 steps on 4 ranks of 1 node" in result.summary["verdict"]["text"]
    fewer = raysim.load(folder).with_({"script.launcher": "torchrun --nproc-per-node 2"})
    assert "8 steps on 2 ranks" in raysim.run(fewer).summary["verdict"]["text"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("{path: linear_ddp.py, launcher: mpirun -n 4}", "is no launcher"),
        ("{path: linear_ddp.py, launcher: torchrun --colour red}", "launcher"),
        ("{path: linear_ddp.py, launcher: torchrun}, copies: 2", "only job"),
    ],
)
def test_a_launcher_that_cannot_be_is_said_where_it_stands(
    job: str, said: str, folder: Path
) -> None:
    (folder / "scenario.yaml").write_text(
        f"cluster: {{nodes: 1, node: dgx-h100}}\njobs:\n- {{script: {job}}}\n"
    )
    with pytest.raises(ScenarioError, match=said) as caught:
        raysim.load(folder)
    assert caught.value.problems[0].where is not None


def test_a_script_that_fails_shows_its_own_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "torchrun", "--nproc-per-node", "2", "linear_ddp.py", "--fail"]) == 1
    printed = capsys.readouterr()
    assert 'raise ValueError("rank 1 has had enough")' in printed.err
    assert "raysim/" not in printed.err.replace("raysim: values", "")
    assert "a rank raised ValueError: rank 1 has had enough." in printed.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nproc-per-node 9 linear_ddp.py", "9 processes on a node of 8 GPUs"),
        ("deepspeed absent.py", "absent.py"),
        ("accelerate test linear_ddp.py", "accelerate test is not emulated"),
        ("torchrun --nope linear_ddp.py", "torchrun: "),
    ],
)
def test_mistakes_exit_with_2(
    line: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *line.split()]) == 2
    assert said in capsys.readouterr().err
