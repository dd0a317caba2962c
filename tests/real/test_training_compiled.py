"""Training scripts with ``torch.compile``, and with what they watch their GPU with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.training.plan import TrainingPlan  # noqa: E402
from tests.real.training_script_parts import fit, fit_value  # noqa: E402

WIDTH, VOCABULARY = 512, 8192


class Block(nn.Module):
    """A norm and an MLP with a GELU of many operators."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.fc(self.norm(x))
        return x + self.out(0.5 * y * (1.0 + torch.tanh(0.79788 * (y + 0.044715 * y.pow(3)))))


class Net(nn.Module):
    """Some blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def cross_entropy(out: Any, labels: Any) -> Any:
    return functional.cross_entropy(out.flatten(0, 1).float(), labels.flatten())


def loop(config: dict[str, Any]) -> None:
    how = config["how"]
    net, loss = Net().to("cuda"), cross_entropy
    optimizer = torch.optim.AdamW(net.parameters())
    step: Any = optimizer.step
    if how in {"model", "ddp", "eager backend", "graphs"}:
        backend = "eager" if how == "eager backend" else "inductor"
        compiled = torch.compile(
            net, backend=backend, mode="reduce-overhead" if how == "graphs" else None
        )
        assert how == "eager backend" or compiled._orig_mod is net
        net = compiled
    elif how == "method":
        net.compile()
    elif how == "blocks":
        for i, layer in enumerate(net.layers):
            net.layers[i] = torch.compile(layer, fullgraph=True)
    elif how == "loss":
        loss = torch.compile(loss)
    elif how == "optimizer":

        @torch.compile(fullgraph=False)
        def step() -> None:
            optimizer.step()

    if how == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    for _ in range(3):
        ids = torch.randint(0, VOCABULARY, (32, 256), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value = loss(net(ids), ids)
        value.backward()
        step()
        optimizer.zero_grad()


def took(how: str) -> tuple[float, float]:
    """Seconds of a step, and what it has allocated at its peak."""
    _, report = fit(loop, workers=1, how=how)
    return report.metrics["step_seconds"], report.metrics["gpu_mem_allocated_bytes"]


def test_what_is_compiled_decides_on_what_is_kept_and_how_long_it_takes() -> None:
    found = {how: took(how) for how in ("eager", "model", "ddp", "method", "blocks", "loss")}
    eager_s, eager_peak = found["eager"]
    assert found["model"] == found["method"] == found["ddp"]
    assert found["model"][0] < 0.8 * eager_s
    assert found["model"][1] < 0.8 * eager_peak
    assert found["blocks"] == pytest.approx(found["model"], rel=0.02)
    assert found["model"][0] < found["loss"][0] < eager_s
    assert found["loss"][1] < eager_peak
    assert took("eager backend") == found["eager"]


def test_graphs_are_asked_for_and_a_compiled_optimizer_is_one_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[TrainingPlan] = []
    predict = prediction.predict

    def asked(plan: TrainingPlan, *more: Any) -> Any:
        plans.append(plan)
        return predict(plan, *more)

    monkeypatch.setattr(prediction, "predict", asked)
    found = [
        (took(what), plans[-1].torch_compile, plans[-1].cuda_graphs)
        for what in ("model", "graphs", "eager", "optimizer")
    ]
    model, graphs, eager, optimizer = (times for times, *_ in found)
    assert [asked for _, *asked in found] == [
        [True, False], [True, True], [False, False], [False, False],
    ]  # fmt: skip
    assert graphs[0] <= model[0]
    assert optimizer[0] < eager[0]
    assert optimizer[1] == eager[1]


# ---- watching ------------------------------------------------------------------------------------


def watched(config: dict[str, Any]) -> tuple[float, float, int]:
    """Milliseconds of the last step, by events and by the clock; calls of a hook on gradients."""
    import time

    net = nn.DataParallel(Net(), device_ids=[0]).cuda()
    optimizer = torch.optim.Adadelta(net.parameters())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    called: list[torch.Size] = []
    own: dict[Any, Any] = {}

    def update(parameter: Any) -> None:
        called.append(parameter.grad.shape)
        own[parameter].step()
        own[parameter].zero_grad()

    if config.get("hooks"):
        for parameter in net.parameters():
            own[parameter] = torch.optim.AdamW([parameter])
            parameter.register_post_accumulate_grad_hook(update)
    torch.cuda.memory._record_memory_history()
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    handler = torch.profiler.tensorboard_trace_handler(config["folder"])
    with torch.profiler.profile(schedule=schedule, on_trace_ready=handler) as profiler:
        for _ in range(3):
            before = time.time()
            start.record()
            ids = torch.randint(0, VOCABULARY, (8, 256), device="cuda")
            torch.cuda.nvtx.range_push("step")
            cross_entropy(net(ids), ids).backward()
            if not own:
                optimizer.step()
            torch.cuda.nvtx.range_pop()
            end.record()
            profiler.step()
            torch.cuda.synchronize()
            spent_ms = 1e3 * (time.time() - before)
    assert profiler.key_averages().table() == ""
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    assert torch.cuda.memory._snapshot()["segments"] == []
    return start.elapsed_time(end), spent_ms, len(called)


def test_events_have_virtual_times_and_the_rest_runs_and_says_what_it_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    by_event, by_clock, _ = fit_value(watched, workers=1, folder=str(tmp_path))
    assert by_event == pytest.approx(by_clock, rel=0.01)
    assert by_event > 1.0
    said = capfd.readouterr().err
    assert said.count("torch.profiler records nothing") == 1
    assert said.count("--memory-snapshot") == 1
    assert list(tmp_path.iterdir()) == []


def test_hooks_that_step_an_optimizer_within_backward_take_one_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    by_event, _, called = fit_value(watched, workers=1, folder=str(tmp_path), hooks=True)
    assert called == 3 * len(list(Net().parameters()))
    assert by_event > 1.0
    assert capfd.readouterr().err.count("memory is an upper bound") == 1


def test_groups_of_a_mesh_know_who_is_in_them() -> None:
    def meshes(_: Any) -> tuple[int, int, int, int, int]:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        counted = torch.tensor([10 ** dist.get_rank()], device="cuda")
        dist.all_reduce(counted, group=mesh.get_group("replicate"))
        size = dist.get_world_size(mesh.get_group("shard"))
        return mesh.size(), mesh["shard"].size(), mesh.get_local_rank("shard"), size, int(counted)

    assert fit_value(meshes, workers=4) == (4, 2, 0, 2, 101)
