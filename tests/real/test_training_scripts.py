"""Unmodified training scripts on virtual time: torch, DeepSpeed and transformers on shapes."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from raysim.hardware import catalog  # noqa: E402
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.models import huggingface  # noqa: E402
from raysim.rayapi.loader import run_program, run_script  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.raycore.cluster import Cluster  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from raysim.tracing import trace  # noqa: E402
from raysim.training.compiler.compile import Feed  # noqa: E402
from raysim.training.plan import DdpSettings, TrainingPlan  # noqa: E402
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from raysim.training.tower import StepOutcome, simulate  # noqa: E402

SCRIPTS = Path(__file__).parents[1] / "programs" / "training"
GIB = 2**30


def machines(nodes: int = 1) -> ClusterSpec:
    group = NodeGroup(name="gpus", node=catalog.node("dgx-h100"), count=nodes, head=True)
    return ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))


def script(name: str, *argv: str) -> tuple[list[str], LibraryReport]:
    """What a script prints, and what is reported of its run."""
    cluster = Cluster(Simulation(seed=0), machines())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_script(SCRIPTS / f"{name}.py", argv, cluster=cluster)
    (report,) = cluster.env.reports
    return out.getvalue().splitlines(), report


def fit(loop: Any, *, workers: int = 2, nodes: int = 1, **config: Any) -> tuple[Any, LibraryReport]:
    """What ``loop(config)`` returns on rank 0, and what is reported."""
    cluster = Cluster(Simulation(seed=0), machines(nodes))

    def main() -> Any:
        import ray.train
        from ray.train.torch import TorchTrainer

        return TorchTrainer(
            loop,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=True),
        ).fit()

    try:
        result, _ = run_program(main, cluster)
    except Exception as error:  # noqa: BLE001  (what fit() raises is looked at)
        result = error
    (report,) = cluster.env.reports
    return result, report


def fit_value(loop: Any, **more: Any) -> Any:
    """What the loop returns; it does not fail."""
    result, _ = fit(loop, **more)
    assert not isinstance(result, Exception), result
    return result.return_value


class Net(nn.Module):
    def __init__(self, width: int = 1024, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def train(config: dict[str, Any], *, prepare: bool = True) -> float:
    """A plain loop; what passes in its steps but the first."""
    import time

    import ray.train.torch

    model = Net(config.get("width", 1024))
    if prepare:
        model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters())
    began = 0.0
    for step in range(config["steps"] + 1):
        for _ in range(config.get("accumulation", 1)):
            x = torch.randn(config.get("batch", 64), config.get("width", 1024), device="cuda")
            loss = model(x).pow(2).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            began = time.perf_counter()
    return time.perf_counter() - began


def played(model: Any, plan: TrainingPlan, copy_bytes: float) -> StepOutcome:
    return simulate(
        replace(plan, model=model), machines(), simulation=Simulation(seed=0),
        feed=Feed(copy_bytes=copy_bytes),
    )  # fmt: skip


def net_plan(**changes: Any) -> TrainingPlan:
    nothing: Any = None
    plan = TrainingPlan(
        model=nothing, mesh=Mesh(dp=2), engine="ddp", micro_batch=64,
        gradient_accumulation_steps=1, precision="fp32",
        optimizer=Optimizer(type="AdamW", fused=False), gradient_clipping=0.0,
    )  # fmt: skip
    return replace(plan, **changes)


def traced() -> Any:
    return trace(Net(), torch.zeros(64, 1024), loss=lambda y: y.pow(2).mean())


# ---- the three scripts ---------------------------------------------------------------------------


def test_a_vision_transformer_under_ddp() -> None:
    lines, report = script("vit_ddp", "--samples", "2048", "--depth", "4")
    assert lines[-1] == "1 256 True"
    assert report.ok
    assert report.metrics["steps_per_s"] == pytest.approx(16 / report.metrics["seconds"])
    (row,) = report.tables[0].rows
    assert row[:2] == ("VisionTransformer, DDP, 8 GPUs", 16)
    step_s, per_s = row[2], row[3]
    assert per_s == pytest.approx(8 * 32 / step_s)
    kept = next(r for r in report.tables[1].rows if r[0] == "steps that are kept")
    assert kept[1] == pytest.approx(16 * step_s, rel=1e-3)


def test_its_checkpoint_holds_weights_and_both_moments() -> None:
    _, report = script("vit_ddp", "--samples", "512", "--depth", "2", "--epochs", "1")
    sys.path.insert(0, str(SCRIPTS))
    try:
        import vit_ddp

        numel = sum(p.numel() for p in vit_ddp.VisionTransformer(depth=2).parameters())
    finally:
        sys.path.remove(str(SCRIPTS))
    assert report.metrics["stored_bytes"] == pytest.approx(3 * 4 * numel, rel=1e-3)


@pytest.mark.parametrize(("stage", "accumulation"), [(3, 1), (2, 1), (1, 4)])
def test_bert_under_zero_is_the_scenario_of_the_same_model(stage: int, accumulation: int) -> None:
    lines, report = script(
        "bert_zero3", "--samples", "512", "--stage", str(stage), "--batch-size", "8",
        "--accumulation", str(accumulation), "--length", "128",
    )  # fmt: skip
    assert "'steps'" in lines[-1]
    config = transformers.BertConfig().to_dict() | {
        "architectures": ["BertForSequenceClassification"]
    }
    model = huggingface.build(config, seq_len=128, architecture="BertForSequenceClassification")
    plan = net_plan(
        mesh=Mesh(dp=8), engine="deepspeed", micro_batch=8, precision="bf16",
        gradient_accumulation_steps=accumulation, zero=ZeroConfig(stage=stage),
        gradient_clipping=1.0, optimizer=Optimizer(type="AdamW"),
    )  # fmt: skip
    expected = played(model, plan, 8 * 128 * 24)
    assert report.metrics["step_seconds"] == pytest.approx(expected.steady_step_ns / 1e9, rel=0.02)
    peak_bytes = expected.fullest.peak_bytes
    assert report.metrics["gpu_mem_peak_bytes"] == pytest.approx(peak_bytes, rel=0.02)


def test_vit_under_ddp_and_autocast_is_the_scenario_of_the_same_model() -> None:
    def loop() -> None:
        import ray.train.torch

        model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
        model = ray.train.torch.prepare_model(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            x = torch.randn(64, 3, 224, 224, device="cuda")
            y = torch.randint(0, 1000, (64,), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(pixel_values=x, labels=y).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    _, report = fit(lambda _: loop(), workers=8)
    config = transformers.ViTConfig(num_labels=1000).to_dict()
    model = huggingface.build(config, architecture="ViTForImageClassification")
    plan = net_plan(
        mesh=Mesh(dp=8), micro_batch=64, ddp=DdpSettings(autocast="bf16"),
        optimizer=Optimizer(type="AdamW"),
    )  # fmt: skip
    expected = played(model, plan, 64 * (3 * 224 * 224 * 4 + 8))
    assert report.metrics["step_seconds"] == pytest.approx(expected.steady_step_ns / 1e9, rel=0.02)
    peak_bytes = expected.fullest.peak_bytes
    assert report.metrics["gpu_mem_peak_bytes"] == pytest.approx(peak_bytes, rel=0.02)


def test_a_pipeline_of_two_stages_is_the_tower_of_the_same_layers() -> None:
    small = ["--depth", "4", "--width", "256", "--heads", "4", "--length", "128"]
    lines, report = script("pipeline", *small, "--steps", "10")
    assert lines[-1] == "10"
    (row,) = report.tables[0].rows
    assert row[:2] == ("PipelineModule, ZeRO-1, 2 GPUs", 10)
    _, longer = script("pipeline", *small, "--steps", "10", "--micro-batches", "32")
    # (m + p - 1) slots of work for m micro-batches on p stages: 33 to 9
    ratio = longer.metrics["step_seconds"] / report.metrics["step_seconds"]
    assert ratio == pytest.approx(33 / 9, rel=0.1)
    assert PipelineSettings().stages == 1


# ---- what a step takes ---------------------------------------------------------------------------


def test_steps_take_what_the_tower_says_of_the_traced_model() -> None:
    value, report = fit(train, steps=10)
    expected = played(traced(), net_plan(), 64 * 1024 * 4)
    assert report.metrics["step_seconds"] * 1e9 == expected.steady_step_ns
    assert value.return_value == pytest.approx(10 * expected.steady_step_ns / 1e9, rel=1e-3)
    assert report.metrics["gpu_mem_peak_bytes"] == expected.fullest.peak_bytes


def test_accumulated_backwards_are_one_step() -> None:
    _, report = fit(train, steps=3, accumulation=4)
    plan = net_plan(gradient_accumulation_steps=4)
    expected = played(traced(), plan, 64 * 1024 * 4)
    assert report.metrics["step_seconds"] * 1e9 == expected.steady_step_ns


def test_a_model_that_nothing_wraps_is_trained_by_each_rank_alone() -> None:
    def loop(config: dict[str, Any]) -> None:
        model = Net().to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        for _ in range(2):
            model(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward()
            optimizer.step()

    _, report = fit(loop)
    (row,) = report.tables[0].rows
    assert row[0] == "Net, DDP, 1 GPUs"


def test_workers_on_two_nodes_reduce_over_the_network() -> None:
    _, near = fit(train, steps=2, workers=8, width=4096)
    _, far = fit(train, steps=2, workers=16, nodes=2, width=4096)
    assert far.metrics["step_seconds"] > near.metrics["step_seconds"]


def test_steps_wait_for_the_slowest_rank() -> None:
    def loop(config: dict[str, Any]) -> float:
        import time

        import ray

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        began = 0.0
        for step in range(4):
            if ray.train.get_context().get_world_rank() == 1:
                time.sleep(5)
            model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
            began = began or time.time()
        return time.time() - began

    assert fit_value(loop) == pytest.approx(15, rel=0.01)


def test_more_than_a_gpu_has_is_out_of_memory() -> None:
    error, report = fit(train, steps=3, batch=4_000_000)
    assert type(error).__name__ == "WorkerGroupError"
    assert "torch.OutOfMemoryError: CUDA out of memory" in str(error)
    assert not report.ok
    assert report.text.startswith("does not fit")
    assert report.metrics["gpu_mem_peak"] > 1


def test_a_loop_may_catch_that_and_go_on_with_less() -> None:
    def loop(config: dict[str, Any]) -> int:
        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        batch = 16_000_000
        while True:
            try:
                model(torch.randn(batch, 1024, device="cuda")).mean().backward()
                optimizer.step()
            except torch.cuda.OutOfMemoryError:
                batch //= 2
            else:
                return batch

    result, report = fit(loop)
    assert result.return_value == 2_000_000
    assert report.ok


def test_ten_times_the_steps_cost_little_more_of_this_machine() -> None:
    def loop(config: dict[str, Any]) -> int:
        import ray.train.torch

        ran = []

        class Counted(Net):
            def forward(self, x: Any) -> Any:
                ran.append(1)
                return super().forward(x)

        model = ray.train.torch.prepare_model(Counted())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(config["steps"]):
            model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
        return len(ran)

    for steps in (5, 50):
        result, report = fit(loop, steps=steps)
        assert report.tables[0].rows[0][1] == steps
        assert result.return_value == 2  # for the program, and for the tracer


# ---- the world a worker sees ---------------------------------------------------------------------


def test_workers_see_gpus_ranks_and_no_values() -> None:
    def loop(config: dict[str, Any]) -> dict[str, Any]:
        import math
        import os

        import ray.train.torch
        import torch.distributed as dist

        model = ray.train.torch.prepare_model(Net())
        loss = model(torch.randn(8, 1024).to("cuda")).sum()
        return {
            "gpu": torch.cuda.is_available(), "count": torch.cuda.device_count(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
            "rank": (dist.get_rank(), dist.get_world_size(), os.environ["WORLD_SIZE"]),
            "loss": math.isnan(loss.item()), "branch": bool(loss > 3),
            "numpy": str(loss.detach().cpu().numpy()), "ddp": isinstance(
                model, torch.nn.parallel.DistributedDataParallel),
            "device": str(ray.train.torch.get_device()),
            "integers": torch.arange(5).sum().item(),
        }  # fmt: skip

    found = fit_value(loop)
    assert found == {
        "gpu": True, "count": 1, "memory": int(catalog.node("dgx-h100").gpu.memory_bytes),
        "rank": (0, 2, "2"), "loss": True, "branch": False, "numpy": "nan", "ddp": True,
        "device": "cuda:0", "integers": 10,
    }  # fmt: skip


def test_a_rank_without_gradients_leaves_the_others_theirs() -> None:
    def loop(config: dict[str, Any]) -> bool:
        import ray.train.torch

        if ray.train.get_context().get_world_rank() == 1:
            with torch.no_grad():
                ray.train.report({})
                return torch.is_grad_enabled()
        ray.train.report({})
        return torch.is_grad_enabled()

    assert fit_value(loop) is True


def test_tensors_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> list[Any]:
        model = Net(width=256)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        torch.save(state, tmp_path / "state.pt")
        found = torch.load(tmp_path / "state.pt")
        again = Net(width=256)
        again.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        return [found["epoch"], optimizer.param_groups[0]["lr"], len(found["model"])]

    assert fit_value(loop, workers=1) == [3, 0.5, 8]


def test_a_dataset_is_asked_for_the_first_batches_only() -> None:
    def loop(config: dict[str, Any]) -> Any:
        asked = []

        class Data(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 1000

            def __getitem__(self, i: int) -> Any:
                asked.append(i)
                return torch.randn(8), i

        loader = torch.utils.data.DataLoader(Data(), batch_size=30)
        return [(x.shape[0], y.shape[0]) for x, y in loader], len(asked)

    sizes, asked = fit_value(loop, workers=1)
    assert sizes == [(30, 30)] * 33 + [(10, 10)]
    assert asked == 2 * 30 + 10


def test_a_slow_loader_holds_the_steps_up() -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 640

        def __getitem__(self, i: int) -> Any:
            import time

            time.sleep(0.01)
            return torch.randn(1024)

    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        loader = torch.utils.data.DataLoader(
            Slow(), batch_size=64, num_workers=config["workers"]
        )
        for x in ray.train.torch.prepare_data_loader(loader):
            model(x).mean().backward()
            optimizer.step()

    steps = {}
    for workers in (0, 4, 16):
        _, report = fit(lambda _, n=workers: loop({"workers": n}), workers=1)
        steps[workers] = report.metrics["step_seconds"]
    assert steps[0] == pytest.approx(0.64, rel=0.05)
    assert steps[4] == pytest.approx(0.16, rel=0.05)
    assert steps[16] == pytest.approx(0.04, rel=0.05)


def test_a_loop_resumes_from_the_checkpoint_it_loads() -> None:
    def loop(config: dict[str, Any]) -> int:
        import tempfile

        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        start = 0
        found = ray.train.get_checkpoint()
        if found:
            state = torch.load(f"{found.path}/state.pt")
            model.module.load_state_dict(state["model"])
            start = state["step"]
        for step in range(start, 6):
            model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
            if step == 4 and not found:
                raise RuntimeError("lost")
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": model.module.state_dict(), "step": step + 1}
                torch.save(state, f"{folder}/state.pt")
                ray.train.report({"step": step}, ray.train.Checkpoint.from_directory(folder))
        return start

    cluster = Cluster(Simulation(seed=0), machines())

    def main() -> Any:
        import ray.train
        from ray.train.torch import TorchTrainer

        return TorchTrainer(
            loop,
            train_loop_config={},
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True),
            run_config=ray.train.RunConfig(
                failure_config=ray.train.FailureConfig(max_failures=1)
            ),
        ).fit()

    result, _ = run_program(main, cluster)
    (report,) = cluster.env.reports
    assert (result.return_value, result.metrics) == (4, {"step": 5})
    attempts = next(t for t in report.tables if t.title == "Attempts").rows
    assert [row[2:4] for row in attempts] == [(0, 5), (4, 6)]


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: torch.distributed.all_gather([], torch.zeros(1)), "torch.distributed.all_gather"),
        (lambda: __import__("deepspeed.moe.layer"), "deepspeed.moe"),
        (lambda: __import__("deepspeed").init_inference(None), "deepspeed.init_inference"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(use: Any, name: str) -> None:
    error, _ = fit(lambda _: use())
    assert isinstance(error, NotEmulatedError)
    assert name in str(error)


def test_deepspeeds_own_refusals_are_its_own() -> None:
    def loop(config: dict[str, Any]) -> None:
        import deepspeed

        net = Net()
        deepspeed.initialize(
            model=net, model_parameters=net.parameters(),
            config={"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
        )  # fmt: skip

    error, _ = fit(loop)
    assert "DeepSpeedConfigError" in str(error)
    assert "train_batch_size" in str(error)


def test_everything_is_put_back() -> None:
    before = (
        torch.cuda.is_available, nn.Module.__call__, torch.Tensor.backward, torch.save,
        torch.optim.Optimizer.__init__, sys.modules.get("deepspeed"), list(sys.meta_path),
    )  # fmt: skip
    fit(train, steps=1)
    after = (
        torch.cuda.is_available, nn.Module.__call__, torch.Tensor.backward, torch.save,
        torch.optim.Optimizer.__init__, sys.modules.get("deepspeed"), list(sys.meta_path),
    )  # fmt: skip
    assert before == after
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_script_runs_the_same_twice() -> None:
    runs = [script("vit_ddp", "--samples", "512", "--depth", "2") for _ in range(2)]
    assert runs[0][1].metrics == runs[1][1].metrics


def test_gradient_checkpointing_and_compiling_are_part_of_the_plan() -> None:
    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch
        from torch.utils.checkpoint import checkpoint

        how = config["how"]

        class Block(nn.Sequential):
            def __init__(self) -> None:
                super().__init__(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

        class Deep(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(Block() for _ in range(16))

            def forward(self, x: Any) -> Any:
                for layer in self.layers:
                    if how == "checkpoint":
                        x = checkpoint(layer, x, use_reentrant=False)
                    else:
                        x = layer(x)
                return x

        model = ray.train.torch.prepare_model(Deep())
        if how == "compile":
            model = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(32768, 1024, device="cuda")).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    reports = {how: fit(loop, how=how)[1].metrics for how in ("plain", "checkpoint", "compile")}
    plain = reports["plain"]
    assert reports["checkpoint"]["gpu_mem_peak"] < 0.6 * plain["gpu_mem_peak"]
    assert reports["checkpoint"]["step_seconds"] > 1.2 * plain["step_seconds"]
    assert reports["compile"]["step_seconds"] < plain["step_seconds"]


def test_a_hugging_face_model_with_gradient_checkpointing() -> None:
    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch

        bert = transformers.BertConfig(num_hidden_layers=8)
        model = transformers.BertForSequenceClassification(bert)
        if config["checkpointing"]:
            model.gradient_checkpointing_enable()
        model = ray.train.torch.prepare_model(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            ids = torch.randint(0, 30000, (32, 512)).to("cuda")
            labels = torch.zeros(32, dtype=torch.long, device="cuda")
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    peaks = [fit(loop, checkpointing=c)[1].metrics["gpu_mem_peak"] for c in (False, True)]
    assert peaks[1] < 0.5 * peaks[0]
