"""Training loops on CPU workers: what torch computes between ranks, and what steps take."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from raysim.hardware import catalog  # noqa: E402
from raysim.hardware.cluster import ClusterSpec, NodeGroup  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.perf.ray_core import RayCosts  # noqa: E402
from raysim.rayapi.loader import run_program, run_script  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from raysim.tracing import trace  # noqa: E402
from raysim.training.compiler.feed import Feed  # noqa: E402
from raysim.training.plan import TrainingPlan  # noqa: E402
from raysim.training.settings.deepspeed import Optimizer  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from raysim.training.tower import simulate  # noqa: E402
from tests.raycore_parts import ray_cluster  # noqa: E402
from tests.real.training_script_parts import SCRIPTS  # noqa: E402


def fit(loop: Any, *, workers: int = 2, cpus: int = 4) -> tuple[Any, LibraryReport]:
    """What ``loop()`` returns on rank 0, and what is reported."""
    cluster = ray_cluster(cpus=cpus)

    def main() -> Any:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        return TorchTrainer(
            loop,
            scaling_config=ScalingConfig(
                num_workers=workers, resources_per_worker={"CPU": 0.5}
            ),
            run_config=RunConfig(name="run"),
        ).fit()  # fmt: skip

    result, _ = run_program(main, cluster)
    (report,) = cluster.env.reports
    return result.return_value, report


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def data(samples: int = 24) -> tuple[Any, Any]:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return x, x.prod(1, keepdim=True)


def test_two_ranks_learn_what_one_would_of_both_their_samples() -> None:
    def loop() -> Any:
        from ray.train import get_context
        from ray.train.torch import prepare_model

        rank = get_context().get_world_rank()
        model = prepare_model(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = data()
        for step in range(6):
            mine = slice(4 * step + 2 * rank, 4 * step + 2 * rank + 2)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    alone = net()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    x, y = data()
    for step in range(6):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(x[4 * step :][:4]), y[4 * step :][:4]).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in alone.parameters()])
    found, report = fit(loop)
    torch.testing.assert_close(found, expected)
    assert report.tables[0].rows[0][:2] == ("Sequential, DDP, 2 CPUs", 6)


def steps_of(width: int, count: int) -> Any:
    def loop() -> None:
        from ray.train.torch import prepare_model

        model = prepare_model(net(width))
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = data()
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    return loop


def test_a_step_takes_what_the_tower_says_of_cores_with_gloo() -> None:
    x, y = data()
    model = trace(net(512), (x,), loss=lambda out: nn.functional.mse_loss(out, y.to("meta")))
    node = catalog.node("cpu-ranks-2")
    plan = TrainingPlan(
        model=model, mesh=Mesh(dp=2), engine="ddp", micro_batch=24, precision="fp32",
        gradient_accumulation_steps=1, gradient_clipping=0.0,
        optimizer=Optimizer(type="AdamW", lr=1e-3, fused=False),
    )  # fmt: skip
    cluster = ClusterSpec(groups=(NodeGroup(name="host", node=node, count=1),))
    expected = simulate(plan, cluster, simulation=Simulation(), feed=Feed()).steady_step_ns / 1e9
    _, report = fit(steps_of(512, 50))
    assert report.metrics["step_seconds"] == pytest.approx(expected, rel=1e-3)
    imports_s = RayCosts().train_torch_core_s
    assert report.metrics["steps_s"] - imports_s == pytest.approx(50 * expected, rel=0.02)


def test_ranks_that_share_a_core_take_twice_as_long() -> None:
    took = [fit(steps_of(1024, 10), cpus=cpus)[1].metrics["steps_s"] for cpus in (2, 1)]
    assert took[1] == pytest.approx(2 * took[0], rel=0.05)


def test_gradients_that_are_not_synchronised_stay_a_rank_s_own() -> None:
    def loop() -> Any:
        from ray.train import get_context
        from ray.train.torch import prepare_model

        rank = get_context().get_world_rank()
        model = prepare_model(nn.Linear(1, 1, bias=False))
        sample = torch.full((1, 1), float(rank + 1))
        with model.no_sync():
            model(sample).sum().backward()
        own = model.module.weight.grad.item()
        model(sample).sum().backward()
        reduced = torch.tensor([float(rank)])
        torch.distributed.all_reduce(reduced, op=torch.distributed.ReduceOp.MAX)
        return own, model.module.weight.grad.item(), reduced.item()

    found, _ = fit(loop)
    assert found == (1.0, (1 + 1 + 2 + 2) / 2, 1.0)


def test_each_rank_has_random_numbers_of_its_own() -> None:
    def loop() -> Any:
        import ray.train

        torch.manual_seed(7)
        first = torch.rand(1).item()
        ray.train.report({})  # the other rank draws meanwhile
        return first, torch.rand(1).item()

    generator = torch.Generator().manual_seed(7)
    expected = tuple(torch.rand(1, generator=generator).item() for _ in range(2))
    assert fit(loop)[0] == expected


def test_a_model_that_cannot_be_traced_is_said_to_cost_nothing(capsys: Any) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    def loop() -> bool:
        model = Chooses()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return bool(model.layer.weight.grad.abs().sum() > 0)

    assert fit(loop, workers=1)[0]
    assert "the time of training Chooses is not predicted" in capsys.readouterr().err


def test_a_table_through_ray_data_into_a_network() -> None:
    cluster = ray_cluster(cpus=4)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_script(SCRIPTS / "tabular_cpu.py", ["--epochs", "4"], cluster=cluster)
    (report,) = cluster.env.reports
    text = out.getvalue().strip()
    assert text.startswith("1536 rows, 512 apart, loss 0.0")
    assert report.tables[0].rows[0][:2] == ("Sequential, DDP, 2 CPUs", 4 * 12)


def test_the_first_optimizer_or_wrapper_imports_the_compiler() -> None:
    """Once per process: neither the second optimizer nor DDP behind one pays again."""

    def loop() -> list[float]:
        import time

        from ray.train.torch import prepare_model

        taken = []
        for made in (
            lambda: torch.optim.SGD(net().parameters(), lr=0.1),
            lambda: torch.optim.SGD(net().parameters(), lr=0.1),
            lambda: prepare_model(net()),
        ):
            began_s = time.perf_counter()
            made()
            taken.append(time.perf_counter() - began_s)
        return taken

    (first_s, *others_s), _ = fit(loop)
    assert 0.8 < first_s < 2.0, "0.85 to 1.03 s of a core"
    assert max(others_s) < 0.1
