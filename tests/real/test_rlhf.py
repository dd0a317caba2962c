"""Engines of vLLM and ranks made by hand, in actors of Ray Core."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.rayapi.llm.engine import Model  # noqa: E402
from raysim.rayapi.loader import run_program  # noqa: E402
from raysim.rayapi.ranks.answers import CUDA_START_S  # noqa: E402
from raysim.units import GIB  # noqa: E402
from tests.unit.rayapi.llm_parts import MODEL, gpu_cluster, played  # noqa: E402

GPU: Any = catalog.node("hgx-h100-8").gpu
WEIGHTS_BYTES = Model(MODEL, {}).decoder.total_bytes


def engine(gpus: float = 1, **options: Any) -> Any:
    """An actor with an engine in it."""
    import ray
    from vllm import LLM  # type: ignore[import-not-found]

    made = {"model": MODEL, "max_model_len": 2048, "enforce_eager": True, **options}
    return ray.remote(num_gpus=gpus)(LLM).remote(**made)


def now_s() -> float:
    import time

    return time.time()


def test_answers_are_as_long_as_they_are_asked_for_and_in_order() -> None:
    def main() -> Any:
        import ray
        from vllm import SamplingParams

        llm = engine()
        asked = SamplingParams(n=2, max_tokens=9, logprobs=0)
        prompts = ["Hello", {"prompt_token_ids": [1, 2, 3]}]
        return ray.get(llm.generate.remote(prompts, asked))

    first, second = played(main)
    assert first.prompt == "Hello"
    assert second.prompt_token_ids == [1, 2, 3]
    assert [len(o.token_ids) for o in first.outputs + second.outputs] == [9] * 4
    assert [len(o.logprobs) for o in second.outputs] == [9] * 2
    assert second.outputs[1].finish_reason == "length"


def test_sleeping_copies_weights_over_pcie_and_level_two_drops_them() -> None:
    def main() -> Any:
        import ray

        llm = engine(enable_sleep_mode=True)
        ray.get(llm.collective_rpc.remote(len_of_rank))
        took = []
        for level in (1, 2):
            for call in (lambda level=level: llm.sleep.remote(level), llm.wake_up.remote):
                began_s = now_s()
                ray.get(call())
                took.append(now_s() - began_s)
        ray.get(llm.sleep.remote(1))
        with pytest.raises(RuntimeError, match="wake_up"):
            ray.get(llm.generate.remote("Hello"))
        return took

    slept_s, woke_s, dropped_s, empty_s = played(main)
    copy_s = WEIGHTS_BYTES / GPU.pcie_bytes_per_s
    assert slept_s == pytest.approx(copy_s, rel=0.02)
    assert woke_s == pytest.approx(copy_s, rel=0.02)
    assert max(dropped_s, empty_s) < 0.01 * copy_s


def len_of_rank(worker: Any) -> int:
    return int(worker.rank)


def test_an_engine_beside_another_has_the_memory_that_it_leaves() -> None:
    def main() -> Any:
        import ray

        first = engine(0.5, gpu_memory_utilization=0.6)
        ray.get(first.collective_rpc.remote(len_of_rank))
        second = engine(0.5, gpu_memory_utilization=0.6)
        with pytest.raises(ray.exceptions.ActorDiedError) as raised:
            ray.get(second.collective_rpc.remote(len_of_rank))
        return str(raised.value)

    said = played(main)
    assert "less than desired GPU memory utilization (0.6" in said
    free = (1 - 0.6) * GPU.memory_bytes / GIB
    assert f"({free:.2f}/" in said


class Rank:
    """One of a group that trains a perceptron."""

    def __init__(self, rank: int, world_size: int) -> None:
        import os

        os.environ.update(
            MASTER_ADDR="10.0.0.0", MASTER_PORT="29501", RANK=str(rank), WORLD_SIZE=str(world_size)
        )
        torch.distributed.init_process_group("nccl")

    def train(self, width: int) -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
        model = torch.nn.parallel.DistributedDataParallel(net.cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(64, width, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        unknown = torch.randn(3, device="cuda").cpu()
        return torch.distributed.get_rank(), torch.distributed.get_world_size(), now_s(), unknown


def test_who_comes_after_a_killed_engine_has_its_memory() -> None:
    def main() -> Any:
        import ray
        from vllm import SamplingParams

        answered = 0
        for _ in range(3):
            llm = engine(gpu_memory_utilization=0.9)
            answered += len(ray.get(llm.generate.remote("Hello", SamplingParams(max_tokens=2))))
            ray.kill(llm)
        return answered

    assert played(main) == 3


def test_actors_that_meet_at_an_address_are_ranks_of_one_group() -> None:
    def main() -> Any:
        import ray

        actors = [ray.remote(num_gpus=1)(Rank).remote(r, 4) for r in range(4)]
        return ray.get([a.train.remote(1024) for a in actors])

    found, session = run_program(main, gpu_cluster())
    assert [f[:2] for f in found] == [(r, 4) for r in range(4)]
    assert max(f[2] for f in found) - min(f[2] for f in found) < 0.001
    assert all(f[3].shape == (3,) and f[3].isnan().all() for f in found)
    (report,) = [r for r in session.env.reports if r.kind == "train"]
    assert "3 steps on 4 ranks" in report.text


def test_a_trainer_that_has_no_room_beside_an_engine_is_out_of_memory() -> None:
    def main() -> Any:
        import ray

        llm = engine(0.5, gpu_memory_utilization=0.9)
        ray.get(llm.collective_rpc.remote(len_of_rank))
        trainer = ray.remote(num_gpus=0.5)(Rank).remote(0, 1)
        with pytest.raises(torch.OutOfMemoryError, match="other processes hold"):
            ray.get(trainer.train.remote(30_000))
        return True

    assert played(main)


class Sends:
    """A trainer that hands a weight to an engine's workers."""

    def send(self, port: int, numel: int, world_size: int) -> float:
        from vllm.distributed.device_communicators.pynccl import (  # type: ignore[import-not-found]
            PyNcclCommunicator,
        )
        from vllm.distributed.utils import StatelessProcessGroup  # type: ignore[import-not-found]

        group = StatelessProcessGroup.create("10.0.0.0", port, 0, world_size)
        link = PyNcclCommunicator(group, torch.device("cuda:0"))
        weight = torch.empty(numel, dtype=torch.bfloat16, device="cuda")
        began_s = now_s()
        link.broadcast(weight, src=0)
        return now_s() - began_s


class Takes:
    """What the workers do with it."""

    def take(self, port: int, numel: int, world_size: int) -> int:
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.parallel_state import (  # type: ignore[import-not-found]
            get_world_group,
        )
        from vllm.distributed.utils import StatelessProcessGroup

        this: Any = self
        rank = 1 + get_world_group().rank
        group = StatelessProcessGroup.create("10.0.0.0", port, rank, world_size)
        link = PyNcclCommunicator(group, this.device)
        weight = torch.empty(numel, dtype=torch.bfloat16, device="cuda")
        link.broadcast(weight, src=0)
        this.model_runner.model.load_weights(weights=[("w", weight)])
        return int(this.model_runner.model.loaded_bytes)


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_weights_are_broadcast_to_all_workers(backend: str) -> None:
    numel = 2**30

    def main() -> Any:
        import ray

        gpus = 0 if backend == "ray" else 2
        llm = engine(
            gpus, tensor_parallel_size=2, distributed_executor_backend=backend,
            worker_extension_cls=Takes,
        )  # fmt: skip
        trainer = ray.remote(num_gpus=1)(Sends).remote()
        taken = llm.collective_rpc.remote("take", args=(50_000, numel, 3))
        return ray.get(trainer.send.remote(50_000, numel, 3)), ray.get(taken)

    took_s, loaded = played(main)
    assert loaded == [2 * numel] * 2
    least_s = 2 * numel / GPU.scale_up_bytes_per_s
    assert least_s < took_s < 3 * least_s


class Beside:
    """An actor in a second group, made of torch's inner functions as RLHF trainers do."""

    def meet(self, rank: int, world_size: int) -> Any:
        from torch.distributed import distributed_c10d as c10d

        torch.distributed.init_process_group(
            "nccl", init_method=f"tcp://10.0.0.{rank}:29600", world_size=1, rank=0
        )
        meeting = c10d.rendezvous("tcp://10.0.0.0:29700", rank, world_size)
        store, rank, world_size = next(meeting)
        group, _ = c10d._new_process_group_helper(
            world_size, rank, [], "nccl", c10d.PrefixStore("sync", store), group_name="sync"
        )
        weight = torch.empty(2**30, dtype=torch.bfloat16, device="cuda")
        began_s = now_s()
        torch.distributed.broadcast(weight, 0, group=group)
        place = torch.distributed.get_rank(), torch.distributed.get_rank(group)
        return now_s() - began_s, place, torch.distributed.get_world_size(group)


def test_a_second_group_of_torch_s_inner_functions_is_another_one() -> None:
    def main() -> Any:
        import ray

        actors = [ray.remote(num_gpus=1)(Beside).remote() for _ in range(2)]
        return ray.get([a.meet.remote(rank, 2) for rank, a in enumerate(actors)])

    first, second = played(main)
    assert (first[1], second[1]) == ((0, 0), (0, 1))
    assert first[2] == second[2] == 2
    least_s = 2 * 2**30 / GPU.scale_up_bytes_per_s
    assert least_s < first[0] - CUDA_START_S < 3 * least_s


class Hands:
    """Two processes of one GPU, of which one opens what the other has."""

    def give(self, address: str) -> None:
        import zmq
        from torch.multiprocessing.reductions import reduce_tensor

        socket = zmq.Context().socket(zmq.REQ)
        socket.bind(address)
        socket.send_pyobj(reduce_tensor(torch.empty(3, 5, device="cuda")))
        assert socket.recv() == b"opened"

    def open(self, address: str) -> Any:
        import zmq

        socket = zmq.Context().socket(zmq.REP)
        socket.connect(address)
        rebuild, arguments = socket.recv_pyobj()
        found = rebuild(*arguments)
        socket.send(b"opened")
        return tuple(found.shape), found.dtype, now_s()


def test_a_handle_through_a_socket_opens_a_tensor_of_its_shape() -> None:
    def main() -> Any:
        import ray

        giver, opener = [ray.remote(num_gpus=0.5)(Hands).remote() for _ in range(2)]
        opened = opener.open.remote("ipc:///tmp/handles.sock")
        given = giver.give.remote("ipc:///tmp/handles.sock")
        ray.get(given)
        return ray.get(opened)

    shape, dtype, _ = played(main)
    assert (shape, dtype) == ((3, 5), torch.float32)
