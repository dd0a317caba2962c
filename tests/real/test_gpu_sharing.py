"""What processes of a program pay for GPUs they share, for what they import, for what they send."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.perf.ray_core import RayCosts  # noqa: E402
from raysim.rayapi.imports import CORE_S  # noqa: E402
from raysim.rayapi.ranks.answers import CUDA_START_S  # noqa: E402
from tests.unit.rayapi.llm_parts import played  # noqa: E402

GPU: Any = catalog.node("hgx-h100-8").gpu
STEPS = 5


class Trainer:
    def __init__(self, width: int) -> None:
        self.width = width
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train(self, rows: int) -> float:
        x = torch.randn(rows, self.width, device="cuda")
        torch.cuda.synchronize()
        began_s = time.time()
        for _ in range(STEPS):
            self.net(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.time() - began_s) / STEPS


@pytest.mark.parametrize(("width", "rows", "times"), [(4096, 8192, 2.0), (64, 8, 1.0)])
def test_trainers_that_share_a_gpu_take_turns_on_its_kernels(
    width: int, rows: int, times: float
) -> None:
    """Two together: twice as long where kernels take all of a step, as long where Python does."""

    def main() -> Any:
        import ray

        kind = ray.remote(num_gpus=0.5)(Trainer)
        first, second = kind.remote(width), kind.remote(width)
        ray.get([first.train.remote(rows), second.train.remote(rows)])
        alone = ray.get(first.train.remote(rows))
        return alone, ray.get([first.train.remote(rows), second.train.remote(rows)])

    alone, both = played(main)
    assert max(both) == pytest.approx(times * alone, rel=0.15)


def test_tensors_of_shapes_weigh_what_they_hold_where_they_travel() -> None:
    def main() -> Any:
        import ray

        @ray.remote(num_gpus=1)
        class Holder:
            def __init__(self) -> None:
                self.net = torch.nn.Linear(8192, 8192, bias=False).cuda()

            def weights(self) -> Any:
                return {name: value.cpu() for name, value in self.net.state_dict().items()}

        holder = Holder.remote()
        ray.get(holder.weights.remote())
        began_s = time.time()
        found = holder.weights.remote()
        ray.wait([found], fetch_local=False)
        took_s = time.time() - began_s
        return took_s, ray.get(found)["weight"].shape

    took_s, shape = played(main)
    assert shape == (8192, 8192)
    size = 8192 * 8192 * 4
    least_s = size / RayCosts().serialize_bytes_per_s + size / GPU.pcie_bytes_per_s
    assert least_s < took_s < 1.5 * least_s


def test_a_process_pays_for_torch_and_its_cuda_context_once() -> None:
    def main() -> Any:
        import ray

        @ray.remote(num_gpus=0.5, max_calls=0)
        def product(size: int) -> float:
            left = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
            return (left @ left).sum().item()

        @ray.remote
        def plain() -> int:
            return 1

        ray.get(plain.remote())
        took = []
        for _ in range(2):
            began_s = time.time()
            ray.get(product.remote(256))
            took.append(time.time() - began_s)
        return took

    first, second = played(main)
    assert first - second == pytest.approx(CORE_S["torch"] + CUDA_START_S, rel=0.3)


def test_products_of_a_scripts_own_take_what_products_take() -> None:
    size, times = 8192, 20

    def main() -> Any:
        import ray

        @ray.remote(num_gpus=1)
        def products() -> float:
            left = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
            torch.cuda.synchronize()
            began_s = time.time()
            for _ in range(times):
                left = left @ left
            torch.cuda.synchronize()
            return time.time() - began_s

        return ray.get(products.remote())

    least_s = times * 2.0 * size**3 / GPU.flops_per_s["bf16"]
    assert least_s < played(main) < 1.6 * least_s
