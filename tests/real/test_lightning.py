"""PyTorch Lightning, unmodified: against its own launcher, gloo's numbers, and the same job said as
a scenario.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),  # Lightning's own, of torch's next release and of loaders
]
torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")

import raysim  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.rayapi.loader import run_script  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.raycore.cluster import Cluster  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import cpus, launched, seen_in  # noqa: E402
from tests.real.training_script_parts import LLAMA, fit, machines  # noqa: E402

PROGRAMS = Path(__file__).parents[1] / "programs" / "lightning"
ZERO = {"zero_allow_untested_optimizer": True, "bf16": {"enabled": True}}
FILES = {
    "config.json": LLAMA,
    "zero2.json": ZERO | {"zero_optimization": {"stage": 2}},
    "zero3.json": ZERO | {"zero_optimization": {"stage": 3}, "gradient_clipping": 1.0},
}  # fmt: skip
ADAM = "optimizer: {type: AdamW, fused: false, lr: 5.0e-5}"
COLLATING = 1e-3
"""A script's loader copies its batches, which a scenario without data does not."""


def run(name: str, *flags: str, launcher: str = "python", **more: Any) -> tuple[list[str], Any]:
    """What the ranks print, and what is reported."""
    return launched(*launcher.split(), str(PROGRAMS / f"{name}.py"), *flags, **more)


# ---- ranks that Lightning starts -----------------------------------------------------------------


def test_ranks_find_and_learn_what_lightning_s_own_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    real, ours = tmp_path / "real", tmp_path / "ours"
    real.mkdir(), ours.mkdir()
    words = [str(PROGRAMS / "seen_lightning.py"), "--flag", "a b"]
    before = dict(os.environ, SEEN=str(real))
    said = said_by([sys.executable, *words], before)
    monkeypatch.setenv("SEEN", str(ours))
    lines, report = launched("python", *words, spec=cpus())
    assert lines == said == ["2 ranks, epoch 2"]
    expected, found = seen_in(real), seen_in(ours)
    assert expected.keys() == found.keys() == {"0", "1"}
    for rank, theirs in expected.items():
        mine = found[rank]
        for each in (theirs, mine):
            each["environ"] = {
                k: v for k, v in each["environ"].items() if k not in {"SEEN", "MASTER_PORT"}
            }
        assert mine == theirs
    assert report.metrics["step_seconds"] > 0


def test_one_command_starts_the_ranks_of_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    script = tmp_path / "two_nodes.py"
    script.write_text(
        "import os\n"
        "import lightning as L\n"
        "from lightning.pytorch.demos.boring_classes import BoringModel\n"
        "trainer = L.Trainer(accelerator='gpu', devices=2, num_nodes=2, max_steps=1,\n"
        "    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,\n"
        "    logger=False)\n"
        "trainer.fit(BoringModel())\n"
        "names = ('NODE_RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')\n"
        "print(trainer.global_rank, *(os.environ.get(name, '') for name in names))\n"
    )
    lines, report = launched("python", str(script), spec=machines(2))
    assert sorted(lines) == [
        f"{2 * node + i} {node} {i}  10.0.0.0" for node in (0, 1) for i in (0, 1)
    ]
    assert report.detail["ranks"] == [[0, 2], [1, 2]]
    with pytest.raises(raysim.ScenarioError, match="starts ranks on 2 nodes"):
        launched("python", str(script))


def test_what_is_not_emulated_is_refused_by_name() -> None:
    with pytest.raises(NotEmulatedError, match="ddp_spawn"):
        run("residual_lightning", "--strategy", "ddp_spawn", "--devices", "2")
    with pytest.raises(NotEmulatedError, match="accelerator='cpu' on nodes with GPUs"):
        run("residual_lightning", "--accelerator", "cpu", "--devices", "2")


# ---- the same job as a scenario ------------------------------------------------------------------


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    """What a user has beside the script."""
    for name, content in FILES.items():
        (in_tmp / name).write_text(json.dumps(content))
    return in_tmp


def said(folder: Path, section: str) -> Any:
    """The summary of the same job as a scenario."""
    head = (
        "raysim: 1\ncluster: {nodes: 1, node: dgx-h100}\nmodel: {from: config.json}\njobs:\n"
        "- train:\n    seq_len: 128\n    micro_batch: 4\n    steps: 4\n"
    )
    (folder / "scenario.yaml").write_text(head + "".join(f"    {s}\n" for s in section.split("\n")))
    return raysim.run(raysim.load(folder)).summary


SHARDED = (
    "fsdp: {version: 1, use_orig_params: true, transformer_layer_cls: [LlamaDecoderLayer], "
    f"mixed_precision: {{param_dtype: bf16, reduce_dtype: bf16}}}}\nprecision: fp32\n{ADAM}"
)


CLIPPED = f"ddp: {{autocast: bf16}}\n{ADAM}\ngradient_clipping: 1.0\ngradient_accumulation_steps: 2"


@pytest.mark.parametrize(
    ("flags", "section"),
    [
        ("--accumulate 2 --clip 1.0", CLIPPED),
        ("--precision bf16-true", f"precision: bf16\n{ADAM}"),
        ("--strategy fsdp", SHARDED),
        ("--strategy zero2.json", f"deepspeed: zero2.json\nprecision: bf16\n{ADAM}"),
        ("--strategy zero3.json --precision bf16-true --accumulate 2",
         f"deepspeed: zero3.json\nprecision: bf16\n{ADAM}\ngradient_accumulation_steps: 2"),
    ],
    ids=["ddp", "ddp-bf16", "fsdp", "zero2", "zero3"],
)  # fmt: skip
def test_a_step_of_the_trainer_is_the_scenario_s(flags: str, section: str, folder: Path) -> None:
    pytest.importorskip("transformers")
    _, report = run("llama_lightning", *flags.split())
    expected = said(folder, section)
    step_s = expected["step"]["seconds"]  # of a scenario, which knows no loop
    assert -COLLATING * step_s <= report.metrics["step_seconds"] - step_s < 4e-3
    # Lightning zeroes gradients between forward and backward; a scenario's loop does so before.
    more = report.metrics["gpu_mem_peak_bytes"] / expected["memory"]["peak_bytes"] - 1
    assert 0 <= more < (0.01 if report.tables[0].rows[0][0].count("DDP") else 1e-12)


TYPED = """
import sys, torch, lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 1)
    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 64, dtype=torch.float64))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=1, devices=1, precision=sys.argv[1], **quiet)
trainer.fit(Module(), torch.utils.data.DataLoader(data, 32))
print("done")
"""


def test_types_are_those_that_a_precision_leaves(tmp_path: Path) -> None:
    """Its plugins cast inputs, or products; without them numpy's numbers meet fp32 weights."""
    script = tmp_path / "typed.py"
    script.write_text(TYPED)
    with pytest.raises(RuntimeError, match="must have the same dtype, but got Double and Float"):
        launched("python", str(script), "32-true")
    assert launched("python", str(script), "bf16-true")[0][-1] == "done"


def test_a_model_that_does_not_fit_is_a_result() -> None:
    from raysim.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        script = str(PROGRAMS / "residual_lightning.py")
        code = main(["run", "-q", "python", script, "--width", "60000", "--batch", "2"])
    assert code == 1
    assert "does not fit: the step needs" in out.getvalue()


# ---- modules as people write them ----------------------------------------------------------------


@pytest.mark.parametrize("flags", [[], ["--recompute"]], ids=" ".join)
def test_several_modules_of_a_step_are_one_model(flags: list[str]) -> None:
    parts, told_apart = run("two_parts", *flags)
    whole, together = run("two_parts", *flags, "--whole")
    by_hand, own_steps = run("two_parts", *flags, "--whole", "--by_hand")
    assert parts == whole == by_hand == ["16 16 ['accuracy', 'error', 'loss']"]
    names = [report.tables[0].rows[0][0] for report in (told_apart, together, own_steps)]
    assert names == ["AutoEncoder, DDP, 2 GPUs", "Both, DDP, 2 GPUs", "Both, DDP, 2 GPUs"]
    for other in (told_apart, own_steps):
        assert other.metrics["gpu_mem_peak_bytes"] == together.metrics["gpu_mem_peak_bytes"]
        assert other.metrics["step_seconds"] == pytest.approx(
            together.metrics["step_seconds"],
            rel=0.1,  # averages and waits of one's own
        )
        assert any("recompute" in row for row in other.tables[1].rows) == bool(flags)


def test_several_modules_of_a_step_by_hand_are_one_phase() -> None:
    """Their calls and the loss, as where the whole step is the model."""
    (apart, together) = (run("two_parts", *flags)[1] for flags in (["--by_hand"], []))
    assert apart.tables[0].rows[0][:2] == ("Sequential, DDP, 2 GPUs", 16)
    for name in ("gpu_mem_peak_bytes", "gpu_mem_allocated_bytes"):
        assert apart.metrics[name] == together.metrics[name]
    # most steps', not the mean: the first after an evaluation has that beside it
    assert apart.metrics["step_seconds"] == pytest.approx(
        together.metrics["step_seconds"], rel=0.05
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_3"])
def test_checkpoints_are_paid_for_and_resumed_from(strategy: str, in_tmp: Path) -> None:
    flags = ["--strategy", strategy, "--devices", "4", "--save", "out", "--samples", "1024"]
    lines, report = run("residual_lightning", *flags, "--steps", "6")
    names = ["lr-AdamW", "train_loss", "train_loss_epoch", "train_loss_step", "val_loss"]
    assert lines == [f"6 4 {KINDS[strategy]} 1e-06 {names}"]
    assert report.metrics["checkpoint_stall_s"] > 0
    assert report.metrics["step_seconds"] > 0
    assert (in_tmp / "out" / "last.ckpt").exists()
    assert (in_tmp / "out" / "lightning_logs" / "version_0" / "metrics.csv").is_file()
    lines, _ = run("residual_lightning", *flags, "--steps", "8", "--resume", "out/last.ckpt")
    assert lines[0].startswith(f"8 4 {KINDS[strategy]} 1e-07 ")


@pytest.mark.parametrize(
    "flags",
    [
        ["--precision", "16-mixed", "--strategy", "fsdp"], ["--precision", "64-true"],
        ["--clip", "0.5", "--clip_by", "value"], ["--bar", "--strategy", "auto"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_the_trainer_is_asked_for_is_done(flags: list[str]) -> None:
    lines, report = run("residual_lightning", "--devices", "2", "--width", "256", *flags)
    assert any(line.startswith("4 2 ") for line in lines)
    assert report.tables[0].rows[0][1] == 4


KINDS = {
    "ddp": "Regression", "fsdp": "FullyShardedDataParallel", "deepspeed_stage_3": "DeepSpeedEngine",
}  # fmt: skip


# ---- Fabric --------------------------------------------------------------------------------------


def test_fabric_ends_with_the_numbers_of_real_ranks() -> None:
    script = str(PROGRAMS / "fabric_regression.py")
    real = said_by([sys.executable, script])
    lines, report = run("fabric_regression", spec=cpus())
    assert lines == real != []
    assert report.metrics["step_seconds"] > 0


@pytest.mark.parametrize(
    ("strategy", "engine", "steps"),
    [
        ("ddp", "DDP", 8), ("fsdp", "FSDP1", 8), ("deepspeed_stage_2", "ZeRO-2", 8),
        ("two_dimensions", "FSDP2, tp 2", 16),
    ],
)  # fmt: skip
def test_fabric_wraps_what_its_strategy_says(
    strategy: str, engine: str, steps: int, in_tmp: Path
) -> None:
    lines, report = run(
        "fabric_regression", "--accelerator", "gpu", "--strategy", strategy, "--precision",
        "bf16-true", "--save", str(in_tmp / "saved"), launcher="torchrun --nproc-per-node 2",
    )  # fmt: skip
    assert lines == ["2 cuda:0 nan"]
    assert report.tables[0].rows[0][:2] == (f"Sequential, {engine}, 2 GPUs", steps)


# ---- inside Ray Train ----------------------------------------------------------------------------


def in_ray_train(*flags: str) -> tuple[list[str], Any]:
    """The guide's program: what its driver prints, and the report."""
    cluster = Cluster(Simulation(seed=0), machines())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_script(PROGRAMS / "images_ray.py", flags, cluster=cluster)
    (report,) = cluster.env.reports
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("(train_func")]
    return lines, report


@pytest.mark.parametrize(
    ("strategy", "engine"),
    [("RayDDPStrategy", "DDP"), ("RayFSDPStrategy", "FSDP1"), ("RayDeepSpeedStrategy", "ZeRO-2")],
)
def test_ray_train_s_strategies_report_a_checkpoint_each_epoch(strategy: str, engine: str) -> None:
    lines, report = in_ray_train("--strategy", strategy)
    assert lines == [
        "['epoch', 'loss', 'step', 'val_accuracy', 'val_loss'] 1 16", "['checkpoint.ckpt']",
        "ImageClassifier 64" if engine != "ZeRO-2" else "a folder",
    ]  # fmt: skip
    assert report.tables[0].rows[0][:2] == (f"Sequential, {engine}, 4 GPUs", 16)
    assert report.metrics["checkpoint_stall_s"] > 0


def test_an_attempt_goes_on_from_the_last_epoch_s_checkpoint(tmp_path: Path) -> None:
    lines, report = in_ray_train("--fails_once", str(tmp_path / "told"))
    assert lines[0].endswith(" 1 16")
    assert report.metrics["restarts"] == 1
    assert report.tables[0].rows[0][1] == 16, "the first epoch is not trained again"


def test_workers_without_gpus_really_learn() -> None:
    lines, report = in_ray_train("--cpu", "--workers", "2", "--samples", "256")
    assert lines[1:] == ["['checkpoint.ckpt']", "ImageClassifier 64"]
    assert report.tables[0].rows[0][0] == "ImageClassifier, DDP, 2 CPUs"


def test_a_trainer_is_ray_train_s_or_refused_as_ray_does() -> None:
    def loop(config: dict[str, Any]) -> list[str]:
        import lightning.pytorch as pl
        import ray.train
        from ray.train.lightning import (
            RayDDPStrategy,
            RayLightningEnvironment,
            RayTrainReportCallback,
            prepare_trainer,
        )

        assert RayTrainReportCallback.CHECKPOINT_NAME == "checkpoint.ckpt"
        said = []
        for more in (
            {"strategy": "auto", "devices": 1},
            {"strategy": RayDDPStrategy()},
            {"strategy": RayDDPStrategy(), "plugins": [RayLightningEnvironment()]},
        ):
            try:
                trainer = prepare_trainer(pl.Trainer(accelerator="gpu", logger=False, **more))
                found = trainer.strategy
                said.append(f"{found.root_device} {found.distributed_sampler_kwargs}")
            except RuntimeError as error:
                said.append(str(error)[:34])
        return [*said, str(ray.train.torch.get_device())]

    result, _ = fit(loop, workers=2)
    assert result.return_value == [
        "Invalid strategy class: <class 'li", "Invalid cluster environment plugin",
        "cuda:0 {'num_replicas': 2, 'rank': 0}", "cuda:0",
    ]  # fmt: skip
