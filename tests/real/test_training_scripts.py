"""Unmodified training scripts on virtual time: what they take, against the tower and scenarios."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_utils")  # now, so that it has torch's own functions

from torch import nn  # noqa: E402

from raysim.models import huggingface  # noqa: E402
from raysim.perf.host_loops import received  # noqa: E402
from raysim.training.plan import DdpSettings  # noqa: E402
from raysim.training.settings.deepspeed import Optimizer, ZeroConfig  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from tests.real.training_script_parts import (  # noqa: E402
    SCRIPTS,
    Net,
    fit,
    fit_value,
    net_plan,
    played,
    script,
    traced,
    train,
)  # fmt: skip

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
    kept = next(r for t in report.tables for r in t.rows if r[0] == "steps that are kept")
    assert kept[1] == pytest.approx(16 * step_s, rel=1e-2)  # but for the first


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
    handed_over = received(tensors=3)  # by its loader's processes
    expected = played(model, plan, 8 * 128 * 24, handed_over)
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
    images_bytes = 64 * 3 * 224 * 224 * 4
    expected = played(model, plan, images_bytes + 64 * 8)
    assert round(report.metrics["step_seconds"] * 1e9) == expected.steady_step_ns
    # Backward keeps a 16-bit copy of the images, and the script the images.
    assert report.metrics["gpu_mem_peak_bytes"] == expected.fullest.peak_bytes + images_bytes


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


# ---- what a step takes ---------------------------------------------------------------------------


def test_steps_take_what_the_tower_says_of_the_traced_model() -> None:
    value, report = fit(train, steps=10)
    expected = played(traced(), net_plan(), 64 * 1024 * 4)
    assert report.metrics["step_seconds"] * 1e9 == expected.steady_step_ns
    assert value.return_value == pytest.approx(10 * expected.steady_step_ns / 1e9, rel=1e-3)
    assert report.metrics["gpu_mem_peak_bytes"] == expected.fullest.peak_bytes


def test_a_script_s_tf32_is_of_its_plan() -> None:
    def loop(config: dict[str, Any]) -> float:
        torch.set_float32_matmul_precision("high" if config["tf32"] else "highest")
        try:
            return train(config)
        finally:
            torch.set_float32_matmul_precision("highest")

    wide = {"width": 8192, "batch": 4096, "steps": 4}
    exact, rounded = (fit(loop, tf32=tf32, **wide)[1].metrics for tf32 in (False, True))
    assert exact["step_seconds"] > 3 * rounded["step_seconds"]
    assert exact["gpu_mem_peak_bytes"] == rounded["gpu_mem_peak_bytes"]


def test_a_script_s_channels_last_reaches_the_trace() -> None:
    def loop(config: dict[str, Any]) -> None:
        form = torch.channels_last if config["last"] else torch.contiguous_format
        model = nn.Sequential(nn.Conv2d(3, 512, 3, padding=1), nn.Conv2d(512, 512, 3, padding=1))
        model = model.to("cuda", memory_format=form)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            x = torch.randn(32, 3, 64, 64).to("cuda", memory_format=form)
            model(x).mean().backward()
            optimizer.step()

    first, last = (fit(loop, last=last)[1].metrics["step_seconds"] for last in (False, True))
    assert last < 0.9 * first


def test_accumulated_backwards_are_one_step() -> None:
    _, report = fit(train, steps=3, accumulation=4)
    plan = net_plan(gradient_accumulation_steps=4)
    plan = replace(plan, ddp=replace(plan.ddp, sync_every_micro_batch=True))  # for lack of no_sync
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
        for _ in range(4):
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
                    if "checkpoint" in how:
                        x = checkpoint(layer, x, use_reentrant=how == "whole checkpoint")
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

    ways = ("plain", "checkpoint", "whole checkpoint", "compile")
    reports = {how: fit(loop, how=how)[1].metrics for how in ways}
    plain = reports["plain"]
    assert reports["checkpoint"]["gpu_mem_peak"] < 0.6 * plain["gpu_mem_peak"]
    assert reports["checkpoint"]["step_seconds"] > 1.1 * plain["step_seconds"]
    # A reentrant one runs its last product again.
    whole = reports["whole checkpoint"]["step_seconds"]
    assert whole > 1.05 * reports["checkpoint"]["step_seconds"]
    assert reports["compile"]["step_seconds"] < plain["step_seconds"]


def test_a_hugging_face_model_with_gradient_checkpointing() -> None:
    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch

        bert = transformers.BertConfig(num_hidden_layers=8)
        model = transformers.BertForSequenceClassification(bert)
        if config["checkpointing"]:
            new = getattr(model, "activation_checkpointing_enable", None)
            (new or model.gradient_checkpointing_enable)()
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


def test_one_backward_of_two_forwards_is_nearly_a_batch_twice_as_large() -> None:
    """What dies within a forward or a backward is half as large, and kernels are twice as many."""

    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            x = torch.randn(config["batch"], 1024, device="cuda")
            outputs = [model(x) for _ in range(config["views"])]
            loss = sum(y.mean() for y in outputs)
            loss.backward()
            optimizer.step()

    one = fit(loop, batch=8192, views=1)[1].metrics
    two = fit(loop, batch=4096, views=2)[1].metrics
    tensor = 4096 * 1024 * 4
    less = one["gpu_mem_allocated_bytes"] - two["gpu_mem_allocated_bytes"]
    assert tensor <= less <= 3.1 * tensor
    assert one["step_seconds"] < two["step_seconds"] < 1.1 * one["step_seconds"]


def test_states_that_main_memory_cannot_hold_are_said_so() -> None:
    def loop(config: dict[str, Any]) -> None:
        import deepspeed

        net = Net(width=65536, depth=64)
        engine, *_ = deepspeed.initialize(
            model=net, model_parameters=net.parameters(),
            config={
                "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                "zero_optimization": {
                    "stage": 3, "offload_optimizer": {"device": "cpu"},
                    "offload_param": {"device": "cpu"},
                },
            },
        )  # fmt: skip
        engine.backward(engine(torch.randn(1, 65536, device="cuda").bfloat16()).mean())
        engine.step()

    error, report = fit(loop, workers=8)
    assert "MemoryError: the step needs" in str(error)
    assert not report.ok


def test_an_offloaded_optimizer_has_the_threads_that_its_worker_s_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def loop(config: dict[str, Any]) -> None:
        import os

        import deepspeed

        if config["threads"]:
            os.environ["OMP_NUM_THREADS"] = config["threads"]
        net = Net(width=8192)
        engine, *_ = deepspeed.initialize(
            model=net, model_parameters=net.parameters(),
            config={
                "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            },
        )  # fmt: skip
        engine.backward(engine(torch.randn(1, 8192, device="cuda").bfloat16()).mean())
        engine.step()

    took = {}
    for threads in ("", "1", "56"):
        _, report = fit(loop, threads=threads)
        took[threads] = report.metrics["step_seconds"]
        few = [w for w in report.warnings if w.code == "host-optimizer-with-few-threads"]
        assert len(few) == (threads != "56")
    assert took[""] == took["1"] > 1.3 * took["56"]
