"""Steps that train several modules: phases, their work and memory, against torch's own autograd."""

from __future__ import annotations

import time
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from raysim.rayapi.shapes.here import steps_here  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.training_script_parts import fit, fit_value, nn  # noqa: E402

STEPS = 4


@cache
def ran(kind: str) -> LibraryReport:
    _, report = launched("python", "gan.py", kind)
    return report


def rows(kind: str) -> dict[str, Any]:
    return {row[0].split(",")[0]: row for row in ran(kind).tables[0].rows}


def test_a_gan_takes_a_step_of_each_optimizer() -> None:
    found = rows("dcgan")
    assert {name: row[1] for name, row in found.items()} == {
        "Critic": STEPS, "Generator_and_Critic": STEPS,
    }  # fmt: skip
    steps_s = sum(row[1] * row[2] for row in found.values())
    # The first of each is without the script's own operators, which are its set-up too.
    assert ran("dcgan").metrics["steps_s"] == pytest.approx(steps_s, rel=0.08)


def test_a_step_lasts_from_one_of_an_optimizer_to_its_next() -> None:
    """As who times a loop has it: critic and generator."""
    from tests.real.training_script_parts import fit

    def loop(_: Any) -> list[float]:
        critic, made = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (critic, made))
        times = []
        for _ in range(STEPS):
            x = torch.randn(32, 256, device="cuda")
            critic(x).sin().mean().backward()
            first.step()
            times.append(time.time())
            critic(made(x)).mean().backward()
            second.step()
        return times

    result, report = fit(loop, workers=1)
    *_, before, last = result.return_value
    assert report.metrics["step_seconds"] == pytest.approx(last - before, rel=0.01)


def test_networks_that_are_frozen_in_one_phase_train_in_the_other() -> None:
    found = rows("cycle")
    assert found["Translator_and_Critic"][1] == found["Critic"][1] == STEPS


def test_a_gradient_penalty_is_part_of_the_critics_step() -> None:
    """Each second step trains the generator too."""
    found = rows("wasserstein")
    assert found["Critic"][1] == 2 * STEPS
    assert found["Generator_and_Critic"][1] == STEPS
    assert found["Critic"][2] > rows("dcgan")["Critic"][2]


def test_the_memory_of_the_fullest_phase_is_reported() -> None:
    most = max(row[4] for row in rows("dcgan").values())
    assert ran("dcgan").metrics["gpu_mem_peak_bytes"] == most


def test_one_backward_of_two_networks_is_one_step_of_two_optimizers() -> None:
    (row,) = ran("coder").tables[0].rows
    assert row[1] == STEPS


def real_flops(through: bool) -> int:
    """Of a phase on the CPU: the critic's, of what was made apart, or through the generator."""
    critic = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 1))
    made = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.Linear(128, 64))
    with FlopCounterMode(display=False) as counted:
        x = made(torch.randn(32, 16))
        before = counted.get_total_flops()
        critic(x if through else x.detach()).mean().backward()
    return counted.get_total_flops() - (0 if through else before)


def test_replicas_reduce_what_each_phase_has_made() -> None:
    _, report = launched("torchrun", "--nproc-per-node", "2", "gan.py", "dcgan")
    for row in report.tables[0].rows:
        assert row[1] == STEPS
        assert row[0].endswith("DDP, 2 GPUs")
        assert row[2] > rows("dcgan")[row[0].split(",")[0]][2]


def test_sharded_modules_take_turns_and_rest_as_shards() -> None:
    """Each other's weights and two moments, in fp32, divided by two ranks; time adds up."""
    from tests.real.training_script_parts import Net, fit_value

    def loop(config: dict[str, Any]) -> tuple[float, int]:
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

        wrap = fully_shard if config["version"] == 2 else FullyShardedDataParallel
        models = [wrap(Net(width).cuda()) for width in config["widths"]]
        adams = [torch.optim.AdamW(model.parameters()) for model in models]
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for model, adam, width in zip(models, adams, config["widths"], strict=True):
                model(torch.randn(2048, width, device="cuda")).sum().backward()
                adam.step()
                adam.zero_grad()
            torch.cuda.synchronize()
        return time.perf_counter() - began, torch.cuda.max_memory_allocated()

    for version in (1, 2):
        widths = [2048], [1024], [2048, 1024]
        first, second, both = (fit_value(loop, version=version, widths=w) for w in widths)
        assert both[0] == pytest.approx(first[0] + second[0], rel=0.03)
        rests = 4 * (1024 * 1024 + 1024) * (4 + 8) / 2
        assert both[1] - first[1] == pytest.approx(rests, rel=0.01)


def test_modules_beside_sharded_ones_in_one_backward_lie_whole_on_each_rank() -> None:
    """Parameter and two moments in fp32, of the sharded one a half; replicas are refused."""
    from tests.real.training_script_parts import Net, fit, fit_value

    def loop(config: dict[str, Any]) -> int:
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        first, second = Net(512).cuda(), Net(512).cuda()
        fully_shard(second)
        if config["replicated"]:
            first = DistributedDataParallel(first)
        adam = torch.optim.AdamW([*first.parameters(), *second.parameters()])
        for _ in range(2):
            second(first(torch.randn(8, 512, device="cuda"))).sum().backward()
            adam.step()
            adam.zero_grad()
        return torch.cuda.memory_allocated()

    weights_bytes = 4 * 4 * (512 * 512 + 512)
    kept = fit_value(loop, workers=2, replicated=False) - 2 * 32 * 2**20
    assert kept == pytest.approx(3 * 1.5 * weights_bytes, rel=0.01)
    result, _ = fit(loop, workers=2, replicated=True)
    assert "FSDP's modules and DistributedDataParallel's" in str(result)


@pytest.mark.parametrize("through", [False, True])
def test_products_of_a_phase_are_those_that_torch_runs(through: bool) -> None:
    from tests.real.training_script_parts import fit_value

    def loop(_: Any) -> float:
        from raysim.rayapi.shapes.here import steps_here

        critic = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 1)).cuda()
        made = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.Linear(128, 64)).cuda()
        sgd = torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(2):
            x = made(torch.randn(32, 16, device="cuda"))
            critic(x if through else x.detach()).mean().backward()
            sgd.step()
        steps = steps_here()
        assert steps is not None
        assert steps.latest is not None
        model = steps.latest.plan.model
        products = (o for layer in model.layers for o in layer.body.operators)
        one = sum(
            2 * o.gemm.rows * o.gemm.k * o.gemm.n * (1 + o.of_inputs + o.of_weights)
            for o in products if o.gemm is not None
        )  # fmt: skip
        return 32 * one

    assert fit_value(loop, workers=1) == real_flops(through)


def test_a_batch_is_paid_for_once() -> None:
    """By the step of the optimizer that comes first, though both networks see it."""
    from torch.utils.data import DataLoader, TensorDataset

    from raysim.rayapi.shapes import prediction
    from tests.real.training_script_parts import fit_value

    def loop(_: Any) -> None:
        critic, made = torch.nn.Linear(64, 64).cuda(), torch.nn.Bilinear(64, 64, 64).cuda()
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (critic, made))
        for (x,) in DataLoader(TensorDataset(torch.randn(96, 64)), batch_size=32):
            real = x.cuda()
            critic(real).mean().backward()
            first.step()
            critic(made(real, real)).mean().backward()
            second.step()

    feeds: dict[Any, Any] = {}
    asked = prediction.predict

    def predict(plan: Any, cluster: Any, feed: Any, seed: int) -> Any:
        feeds[plan.model.name, feed.own.kernels] = feed
        return asked(plan, cluster, feed, seed)

    with patch.object(prediction, "predict", predict):
        fit_value(loop, workers=1)
    copied = {name: feed.copy_bytes for (name, _), feed in feeds.items()}
    assert copied == {"Linear": 32 * 64 * 4, "Bilinear_and_Linear": 0}


@pytest.mark.parametrize("syncs", [True, False])
def test_alike_backwards_of_a_phase_each_reduce_gradients(*, syncs: bool) -> None:
    """Unless all but the last of them are under ``no_sync``, as DDP's own."""
    from contextlib import nullcontext

    from torch.nn.parallel import DistributedDataParallel

    from raysim.rayapi.shapes import prediction
    from tests.real.training_script_parts import fit_value

    def loop(_: Any) -> None:
        critic, made = (
            DistributedDataParallel(m.cuda())
            for m in (torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        )
        sgd = torch.optim.SGD([*critic.parameters(), *made.parameters()], lr=0.1)
        for _ in range(2):
            for i in range(3):
                silent = i < 2 and not syncs
                around = [m.no_sync() if silent else nullcontext() for m in (critic, made)]
                with around[0], around[1]:
                    critic(made(torch.randn(4, 8, device="cuda"))).mean().backward()
            sgd.step()

    plans = []
    asked = prediction.predict

    def predict(plan: Any, *others: Any) -> Any:
        plans.append(plan)
        return asked(plan, *others)

    with patch.object(prediction, "predict", predict):
        fit_value(loop, workers=2)
    last = plans[-1]
    assert last.gradient_accumulation_steps == 3
    assert last.ddp.sync_every_micro_batch is syncs


def test_modules_of_the_same_weights_differ_by_their_settings() -> None:
    """Two periods of a vocoder's discriminators: each answers with shapes of its own."""

    class Period(nn.Module):
        def __init__(self, period: int) -> None:
            super().__init__()
            self.period, self.conv = period, nn.Conv2d(1, 4, (5, 1), padding=(2, 0))

        def forward(self, x: Any) -> Any:
            return self.conv(x.view(len(x), 1, -1, self.period))

    def loop(_: dict[str, Any]) -> list[Any]:
        two, three = Period(2).to("cuda"), Period(3).to("cuda")
        x = torch.randn(2, 36).to("cuda")
        optimizer = torch.optim.SGD([*two.parameters(), *three.parameters()])
        for _ in range(2):
            with torch.no_grad():
                shapes = [tuple(critic(x).shape) for critic in (two, three)]
            (two(x).mean() + three(x).mean()).backward()
            optimizer.step()
        return shapes

    assert fit_value(loop) == [(2, 4, 18, 2), (2, 4, 12, 3)]


def test_an_actor_that_learns_every_other_time_makes_rounds_of_two_lengths() -> None:
    """A step is their mean, whatever most of them are."""

    def loop(config: dict[str, Any]) -> None:
        critic, actor = (nn.Linear(4096, 4096).to("cuda") for _ in range(2))
        own = torch.optim.SGD(critic.parameters())
        other = torch.optim.SGD(actor.parameters())
        x = torch.randn(8192, 4096).to("cuda")
        for step in range(21):
            critic(x).mean().backward()
            own.step()
            if step % config["every"] == 0:
                actor(x).mean().backward()
                other.step()

    def step_s(every: int) -> float:
        return float(fit(loop, workers=1, every=every)[1].metrics["step_seconds"])

    always, often, never = step_s(1), step_s(2), step_s(1000)
    assert often == pytest.approx((always + never) / 2, rel=0.1)


def test_masks_of_random_numbers_are_drawn_and_others_let_everything_pass() -> None:
    def loop(_: dict[str, Any]) -> list[int]:
        x = torch.randn(1000, 8, device="cuda")
        known = torch.rand(1000, device="cuda") < 0.25
        return [len(x[known]), len(x[x.sum(1) > 0])]

    drawn, passed = fit_value(loop)
    assert 200 < drawn < 300
    assert passed == 1000


def physics(count: int, width: int, device: str, *, order: int) -> Any:
    """A network of x and t, and a function that makes its loss of derivatives so often taken."""
    net = nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    ).to(device)

    def loss() -> Any:
        x, t = (torch.rand(count, 1, device=device).requires_grad_() for _ in range(2))
        u = net(torch.cat([x, t], dim=1))
        for _ in range(order):
            u = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        return (u**2).mean()

    return net, loss


def test_derivatives_of_inputs_are_part_of_a_physics_informed_step() -> None:
    """As much longer as real torch counts operations more."""

    def loop(config: dict[str, Any]) -> None:
        net, loss = physics(100_000, 2048, "cuda", order=config["order"])
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(4):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

    def flops(order: int) -> int:
        _, loss = physics(16, 2048, "cpu", order=order)
        with FlopCounterMode(display=False) as counter:
            loss().backward()
        return int(counter.get_total_flops())

    def step_s(order: int) -> float:
        return float(fit(loop, workers=1, order=order)[1].metrics["step_seconds"])

    for order in (1, 2):
        assert step_s(order) / step_s(0) == pytest.approx(flops(order) / flops(0), rel=0.25)


def test_forwards_that_no_backward_comes_to_are_forgotten() -> None:
    """As an agent's that acts with gradients enabled: what it does next is not looked for there."""

    def loop(config: dict[str, Any]) -> tuple[int, int]:
        net, other = (nn.Linear(8, 8).cuda() for _ in range(2))
        optimizer = torch.optim.SGD(net.parameters())
        written = []
        for _ in range(config["steps"]):
            other(torch.zeros(1, 8, device="cuda")).tanh()
            (
                net(torch.zeros(4, 8, device="cuda")) * other(torch.ones(4, 8).cuda())
            ).mean().backward()
            optimizer.step()
            written.append(len(steps_here().several._tape._calls))  # type: ignore[union-attr]
        return max(written[:40]), max(written)

    early, ever = fit_value(loop, workers=1, steps=200)
    assert 0 < ever == early


def test_a_module_with_a_train_of_its_own_is_asked() -> None:
    """Beside hundreds that are told at once: a batch norm that stays as it was trained."""

    class Frozen(nn.BatchNorm1d):
        def train(self, _mode: bool = True) -> Frozen:
            return super().train(False)

    def loop(_: dict[str, Any]) -> list[bool]:
        kept = nn.Dropout()
        kept.train = lambda mode=True: kept  # type: ignore[method-assign]
        net = nn.Sequential(nn.Sequential(Frozen(4), nn.Dropout()), kept.eval())
        net = net.eval().train()
        return [m.training for m in net.modules()]

    assert fit_value(loop, workers=1) == [True, True, False, True, True]
