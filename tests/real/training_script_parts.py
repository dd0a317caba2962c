"""Training scripts and loops in tests: run on DGX machines that are emulated."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.perf.host_loops import NO_WORK, Work
from raysim.rayapi.loader import run_program, run_script
from raysim.raycore.cluster import Cluster
from raysim.raylibs.report import LibraryReport
from raysim.tracing import trace
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate

SCRIPTS = Path(__file__).parents[1] / "programs" / "training"


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


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip
"""A small config.json."""


class Net(nn.Module):
    def __init__(self, width: int = 1024, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def one_layer_llama(attention: str) -> Any:
    """Of transformers, on the GPU."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.cuda()


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


def played(
    model: Any, plan: TrainingPlan, copy_bytes: float, host_work: Work = NO_WORK
) -> StepOutcome:
    return simulate(
        replace(plan, model=model), machines(), simulation=Simulation(seed=0),
        feed=Feed(copy_bytes=copy_bytes, host_work=host_work),
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
