"""The workers of an engine: one process per GPU, or the engine's own process.

Real counterparts: ``vllm/v1/worker/gpu_worker.py``, ``vllm/v1/executor`` (``uniproc``,
``multiproc``, ``ray``). An executor on Ray has an actor for each GPU, placed as vLLM places it;
else ranks are threads of the engine's process. Workers run what ``collective_rpc`` names;
iterations are played by the engine alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.ranks.by_hand import HandMade, begin
from raysim.rayapi.ranks.gpu_use import Place
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.rayapi.vllm.weights import EngineModel

RANKS: WeakKeyDictionary[Fiber, int] = WeakKeyDictionary()
"""Which worker runs in a thread of an engine's process, where it has several."""


class WorkerBase:
    """``vllm.worker.worker_base.WorkerBase``."""


class Worker(WorkerBase):
    """``vllm.v1.worker.gpu_worker.Worker``: what extensions and subclasses find in it."""

    def __init__(self, source: str, dtype: torch.dtype, rank: int, ranks: int) -> None:
        self.rank, self.local_rank = rank, rank
        self.device = torch.device("cuda", 0)
        self.model_config = SimpleNamespace(model=source, dtype=dtype)
        self.parallel_config = SimpleNamespace(
            tensor_parallel_size=ranks, world_size=ranks, rank=rank
        )
        self.vllm_config = SimpleNamespace(
            model_config=self.model_config, parallel_config=self.parallel_config
        )
        self.model_runner = SimpleNamespace(
            model=EngineModel(source, ranks), device=self.device, vllm_config=self.vllm_config
        )

    def get_model(self) -> EngineModel:
        """Of its runner."""
        found: EngineModel = self.model_runner.model
        return found


def worker_class(said: Any, extension: Any) -> type[Worker]:
    """As ``worker_cls`` and ``worker_extension_cls`` say it: classes or their names."""
    kind = _named(said) if said and said != "auto" else Worker
    if not extension:
        return kind
    more = _named(extension)
    return type(f"{kind.__name__}With{more.__name__}", (kind, more), {})


def _named(said: Any) -> Any:
    if not isinstance(said, str):
        return said
    module, _, name = said.rpartition(".")
    return getattr(import_module(module), name)


def call(worker: Any, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """A worker's method by its name, or a function of the worker."""
    if callable(method):
        return method(worker, *args, **(kwargs or {}))
    if not hasattr(worker, method):
        raise NotImplementedError(f"Method {method!r} is not implemented by the worker.")
    return getattr(worker, method)(*args, **(kwargs or {}))


class RayWorkerWrapper:
    """An actor that is one rank's process."""

    def __init__(self, make: Callable[..., Any], engine: str, rank: int, ranks: int) -> None:
        hand = begin(this_fiber(), ())
        hand.meet_others(engine, ranks, rank)
        RANKS[this_fiber()] = 0
        self.hand, self.worker = hand, make(rank=rank)

    def place(self) -> Place:
        """Its node and GPU."""
        return self.hand.places[0]

    def execute(self, method: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """``execute_method``."""
        return call(self.worker, method, args, kwargs)


class RayWorkers:
    """Of ``distributed_executor_backend="ray"``: actors in the bundles of a placement group."""

    def __init__(self, make: Callable[..., Any], engine: str, ranks: int) -> None:
        from raysim.rayapi import api
        from raysim.rayapi.util.placement_group import (
            get_current_placement_group,
            placement_group,
        )
        from raysim.rayapi.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        share = float(os.environ.get("VLLM_RAY_PER_WORKER_GPUS", "1"))
        said = os.environ.get("VLLM_RAY_BUNDLE_INDICES", "")
        group = get_current_placement_group()
        if group is None:
            group = placement_group([{"GPU": 1.0}] * ranks, strategy="PACK")
            api.get(group.ready())
        with_gpus = [i for i, b in enumerate(group.bundle_specs) if b.get("GPU")]
        bundles = [int(i) for i in said.split(",")] if said else with_gpus[:ranks]
        if len(bundles) != ranks:
            raise ValueError(
                f"{ranks} workers, and the placement group has {len(bundles)} bundles with a GPU "
                "for them (VLLM_RAY_BUNDLE_INDICES)"
            )
        self._get = api.get
        self._actors = [
            api.remote(RayWorkerWrapper).options(
                num_cpus=0, num_gpus=share,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_capture_child_tasks=True,
                    placement_group_bundle_index=bundle,
                ),
            ).remote(make, engine, rank, ranks)
            for rank, bundle in enumerate(bundles)
        ]  # fmt: skip
        self.places: list[Place] = api.get([a.place.remote() for a in self._actors])

    def run(self, method: Any, args: Sequence[Any], kwargs: Any) -> list[Any]:
        """In all of them at once."""
        found: list[Any] = self._get(
            [a.execute.remote(method, tuple(args), kwargs) for a in self._actors]
        )
        return found


class OwnWorkers:
    """In the engine's process, on the GPUs that it holds."""

    def __init__(self, make: Callable[..., Any], engine: str, ranks: int, *, alone: bool) -> None:
        hand = _gpus_here(1 if alone else ranks)
        if not alone and not hand.in_group and ranks == 1:
            hand.meet_others(engine, 1, 0)
        self.places = list(hand.places[: 1 if alone else ranks])
        mine = hand.context.rank % ranks if alone else 0
        self._workers = [make(rank=mine + i) for i in range(len(self.places))]

    def run(self, method: Any, args: Sequence[Any], kwargs: Any) -> list[Any]:
        """Side by side, since they may wait for each other."""
        if len(self._workers) == 1:
            return [call(self._workers[0], method, args, kwargs)]
        fiber, made, left = this_fiber(), dict[int, Fiber](), [len(self._workers)]

        def begin_all(then: Callable[[Any], object]) -> None:
            def ended(_: Fiber) -> None:
                left[0] -= 1
                if not left[0]:
                    fiber.process.session.sim.call_later(0, then, None)

            for rank, worker in enumerate(self._workers):
                main = partial(call, worker, method, args, kwargs)
                made[rank] = Fiber(fiber.process, None, main, ended, f"worker {rank}")
                made[rank].depth = 1
                RANKS[made[rank]] = rank
                made[rank].start()

        fiber.settle()
        fiber.block(begin_all)
        for each in made.values():
            if each.error is not None:
                raise each.error
        return [each.result for each in made.values()]


def _gpus_here(ranks: int) -> HandMade:
    """Of the process: an actor's own, a driver's first."""
    fiber = this_fiber()
    state = fiber.process
    if state.is_driver:
        hand = begin(fiber, range(ranks))
        hand.places = tuple((hand.places[0][0], gpu) for gpu in range(ranks))
        hand.shown_devices = ranks
        return hand
    found = state.training
    if not isinstance(found, HandMade) or len(found.places) < ranks:
        have = len(found.places) if isinstance(found, HandMade) else 0
        raise RuntimeError(
            f"the engine needs {ranks} GPUs, its actor holds {have}: start it with "
            f"num_gpus={ranks}, or with distributed_executor_backend='ray'"
        )
    return found


def local_rank() -> int:
    """Of the worker whose code runs."""
    fiber = HUB.current
    return RANKS.get(fiber, 0) if fiber is not None else 0


def workers_for(
    backend: Any, make: Callable[..., Any], engine: str, ranks: int
) -> RayWorkers | OwnWorkers:
    """As ``distributed_executor_backend`` says it.

    Raises
    ------
    NotEmulatedError
        It is a class of the program's own.
    """
    if backend is not None and not isinstance(backend, str):
        if "ray" not in getattr(backend, "__name__", "").lower():
            raise NotEmulatedError(f"the executor {backend!r}", "'ray', 'mp' or 'uni'")
        backend = "ray"
    own = this_fiber().process.training
    few = not isinstance(own, HandMade) or len(own.places) < ranks
    if backend == "ray" or (backend is None and few and not this_fiber().process.is_driver):
        return RayWorkers(make, engine, ranks)
    return OwnWorkers(make, engine, ranks, alone=backend == "external_launcher")
