"""Programs that answer on GPUs: stages of Ray Data, replicas of Serve, tasks of Ray Core."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.perf.host import pageable_bytes_per_s  # noqa: E402
from tests.unit.rayapi.llm_parts import played  # noqa: E402

GPU: Any = catalog.node("hgx-h100-8").gpu
WIDTH, ROWS = 4096, 8192
KERNEL_S = 4 * 2.0 * ROWS * WIDTH**2 / GPU.flops_per_s["fp16"]
"""Of four layers' products, at the peak of the tensor cores: the least that it takes."""


def model() -> Any:
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    return torch.nn.Sequential(*layers).cuda().half().eval()


def forward(net: Any) -> float:
    """Seconds until its answer is there."""
    began_s = time.time()
    with torch.inference_mode():
        net(torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.float16)).sum().item()
    return time.time() - began_s


class Stage:
    def __init__(self) -> None:
        import ray

        self.ids = ray.get_gpu_ids()
        self.net = model()

    def __call__(self, batch: Any) -> Any:
        import numpy as np

        held = torch.from_numpy(batch["data"].copy())
        began_s = time.time()
        rows = held.to("cuda")
        copied_s = time.time() - began_s
        with torch.inference_mode():
            found = self.net(rows.half()).argmax(dim=1).cpu().numpy()
        took = np.full(len(found), [time.time() - began_s])
        gpu = np.full(len(found), self.ids[0])
        return {"label": found, "took": took, "copied": took * 0 + copied_s, "gpu": gpu}


def test_stages_of_ray_data_compute_on_their_gpus() -> None:
    def main() -> Any:
        import ray

        rows = ray.data.range_tensor(2 * ROWS, shape=(WIDTH,), override_num_blocks=2)
        rows = rows.map_batches(lambda b: {"data": b["data"].astype("float32")}, batch_size=ROWS)
        made = rows.map_batches(Stage, batch_size=ROWS, num_gpus=1, concurrency=1)
        return made.take_all()

    rows = played(main)
    assert len(rows) == 2 * ROWS
    assert {int(row["gpu"]) for row in rows} == {0}
    copy_s = ROWS * WIDTH * 4 / pageable_bytes_per_s(GPU)
    assert rows[0]["copied"] == pytest.approx(copy_s, rel=0.05)
    assert KERNEL_S < rows[0]["took"] - rows[0]["copied"] < 4 * KERNEL_S


class Half:
    def __init__(self) -> None:
        self.net = model()
        self.forward()

    def forward(self) -> float:
        return forward(self.net)

    def forwards(self) -> float:
        began_s = time.time()
        for _ in range(20):
            forward(self.net)
        return time.time() - began_s


def test_processes_that_share_a_gpu_take_turns() -> None:
    def main() -> Any:
        import ray

        actors = [ray.remote(num_gpus=0.5)(Half).remote() for _ in range(2)]
        ray.get([actor.forward.remote() for actor in actors])
        alone_s = ray.get(actors[0].forwards.remote())
        return alone_s, max(ray.get([actor.forwards.remote() for actor in actors]))

    alone_s, together_s = played(main)
    assert together_s == pytest.approx(2 * alone_s, rel=0.1)


def test_what_does_not_fit_beside_others_says_so_where_it_is_moved() -> None:
    def load(wait_s: float) -> int:
        torch.nn.Linear(100_000, 110_000, bias=False).to("cuda")  # 41 GiB
        time.sleep(wait_s)
        return int(torch.cuda.max_memory_allocated())

    def main() -> Any:
        import ray

        task = ray.remote(num_gpus=0.5, max_retries=0)(load)
        first = task.remote(60)
        time.sleep(40)
        with pytest.raises(torch.OutOfMemoryError, match="other processes hold"):
            ray.get(task.remote(0))
        return ray.get(first)

    assert played(main) == 100_000 * 110_000 * 4


def test_tasks_have_their_gpus_and_others_real_values() -> None:
    def main() -> Any:
        import ray

        @ray.remote
        def on(asks: str) -> Any:
            return torch.cuda.is_available(), float(torch.ones(3, device=asks).sum())

        return ray.get([on.options(num_gpus=1).remote("cuda"), on.remote("cpu")]), ray.get(
            [on.remote("cpu") for _ in range(4)]
        )

    ((with_gpu, _), without), later = played(main)
    assert with_gpu
    assert [without, *later] == [(False, 3.0)] * 5


class Direct:
    """One replica; ``which`` way its forward is called."""

    def __init__(self) -> None:
        self.net = model()
        forward(self.net)

    async def in_loop(self) -> float:
        return forward(self.net)

    def in_thread(self) -> float:
        return forward(self.net)

    async def beside(self) -> float:
        """How late a timer of the loop is."""
        import asyncio

        began_s = time.time()
        for _ in range(50):
            await asyncio.sleep(0.001)
        return time.time() - began_s - 0.05


def test_a_coroutine_that_computes_holds_the_loop_and_a_thread_does_not() -> None:
    def main() -> Any:
        from ray import serve

        deployed = serve.deployment(ray_actor_options={"num_gpus": 1}, max_ongoing_requests=50)
        handle = serve.run(deployed(Direct).bind())
        late = []
        for method in ("in_thread", "in_loop"):
            beside = handle.beside.remote()
            calls = [getattr(handle, method).remote() for _ in range(6)]
            late.append(beside.result())
            _ = [call.result() for call in calls]
        return late

    beside_threads_s, beside_loop_s = played(main)
    assert beside_loop_s - beside_threads_s > 3 * KERNEL_S


def test_answers_with_a_graph_have_no_arrays_and_generated_ones_their_length() -> None:
    def main() -> Any:
        import ray

        @ray.remote(num_gpus=1)
        def ask() -> Any:
            from transformers import GPT2Config, GPT2LMHeadModel

            with pytest.raises(RuntimeError, match="requires grad"):
                torch.nn.Linear(8, 8).cuda().eval()(torch.ones(2, 8).cuda()).cpu().numpy()
            net = GPT2LMHeadModel(GPT2Config(n_layer=2)).cuda().eval()
            ids = torch.ones(3, 5, dtype=torch.long).cuda()
            began_s = time.time()
            made = net.generate(ids, max_new_tokens=10, do_sample=False)
            return tuple(made.shape), time.time() - began_s

        return ray.get(ask.remote())

    shape, took_s = played(main)
    assert shape == (3, 15)
    assert took_s > 0.005
