"""An engine with its workers: start, memory, sleep, remote calls.

Real counterpart: ``vllm/v1/engine/core.py``. ``gpu_memory_utilization`` of each GPU must be free
when it starts, as vLLM asks for it; ``sleep(1)`` copies weights to main memory, ``sleep(2)`` drops
them, and either gives back all but the process's context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.llm.engine import Engine, Model
from raysim.rayapi.ranks.gpu_use import Phase, gpu_use
from raysim.rayapi.vllm.requests import Asked, SamplingParams, prompt_of
from raysim.rayapi.vllm.settings import split
from raysim.rayapi.vllm.workers import Worker, worker_class, workers_for
from raysim.serving.engine import Request
from raysim.units import GIB, NS_PER_S

WEIGHTS, CACHE = "weights", "kv_cache"
"""Tags of ``wake_up``."""


def _make(kind: Any, source: str, dtype: torch.dtype, ranks: int, *, rank: int) -> Any:
    worker = kind.__new__(kind)
    Worker.__init__(worker, source, dtype, rank, ranks)
    return worker


def _make_named(
    said: Any, extension: Any, source: str, dtype: torch.dtype, ranks: int, *, rank: int
) -> Any:
    """In the process of the worker, which imports what was named."""
    return _make(worker_class(said, extension), source, dtype, ranks, rank=rank)


class EngineCore:
    """One engine of a program.

    Raises
    ------
    ValueError
        The model does not fit, or the GPUs are not free.
    """

    def __init__(self, model: str, given: dict[str, Any]) -> None:
        told, executor = split(given)
        self.model = Model(model, told)
        settings = self.model.engine
        ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
        fiber = this_fiber()
        session = fiber.process.session
        number = next(session.libraries.setdefault("vllm engines", count()))
        make = partial(
            _make_named, executor.get("worker_cls"), executor.get("worker_extension_cls"), model,
            _dtype(told.get("dtype")), ranks,
        )  # fmt: skip
        backend = executor.get("distributed_executor_backend")
        self.workers = workers_for(backend, make, f"vllm engine {number}", ranks)
        self.places = tuple(self.workers.places)
        self.use = gpu_use(session)
        self.engine = Engine(self.model, on=self.places[0][0])
        self.asleep: set[str] = set()
        self._sleeps = bool(executor.get("enable_sleep_mode"))
        self._under_way, self._began_ns = 0, 0
        self._numbers = count()
        self._is_free()
        self._hold()
        fiber.sleep(fiber.take_lead() + round(self.engine.start_s() * NS_PER_S))

    # ---- memory ----------------------------------------------------------------------------------

    @property
    def _usable_bytes(self) -> float:
        return self.engine.runs.capacity.usable_bytes

    def _is_free(self) -> None:
        for place in self.places:
            total, free = self.use.capacity_bytes(place), self.use.free_bytes(self, place)
            if free < self._usable_bytes:
                share = self.engine.settings.gpu_memory_utilization
                raise ValueError(
                    f"Free memory on device cuda:{place[1]} ({free / GIB:.2f}/{total / GIB:.2f} "
                    f"GiB) on startup is less than desired GPU memory utilization ({share}, "
                    f"{self._usable_bytes / GIB:.2f} GiB). Decrease GPU memory utilization or "
                    "reduce GPU memory used by other processes."
                )

    def _awake_bytes(self) -> float:
        """Of each GPU, with what sleeps left out."""
        capacity = self.engine.runs.capacity
        context = float(self.engine.runs.times.gpu.context_bytes)
        held = self._usable_bytes
        if WEIGHTS in self.asleep:
            held -= capacity.weights_bytes
        if CACHE in self.asleep:
            held = min(held, context + (WEIGHTS not in self.asleep) * capacity.weights_bytes)
        return max(held, context)

    def _hold(self) -> None:
        size_bytes = self._awake_bytes()
        missing = self.use.misses(self, self.places, size_bytes)
        if missing:
            raise torch.OutOfMemoryError(f"CUDA out of memory (vLLM wakes up): {missing}.")
        self.use.hold(self, self.places, size_bytes)

    def sleep(self, level: int = 1) -> None:
        """``LLM.sleep``."""
        if not self._sleeps:
            raise ValueError("Sleep mode is not enabled. Please set `enable_sleep_mode=True`.")
        moved = level == 1 and WEIGHTS not in self.asleep
        self.asleep = {WEIGHTS, CACHE}
        self.reset_prefix_cache()
        self._copies(moved=moved)
        self._from_cpu = level == 1
        self._hold()

    _from_cpu = False
    """Weights lie in main memory."""

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """``LLM.wake_up``: all, or what ``tags`` name."""
        waking = self.asleep & set(tags or (WEIGHTS, CACHE))
        self.asleep -= waking
        self._hold()
        self._copies(moved=self._from_cpu and WEIGHTS in waking)

    def _copies(self, *, moved: bool) -> None:
        """Weights to or from main memory, each GPU its own over PCIe."""
        runs = self.engine.runs
        seconds = runs.capacity.weights_bytes / runs.times.gpu.pcie_bytes_per_s if moved else 0.0
        fiber = this_fiber()
        fiber.settle()
        began_ns = self.use.now_ns
        fiber.sleep(round(seconds * NS_PER_S))
        self.spend("sleep and wake", began_ns)

    def reset_prefix_cache(self) -> None:
        """What was computed of prompts is of no use any more."""
        pool = self.engine.runs.pool
        for name in [n for n, p in pool.prefixes.items() if not p.users]:
            pool.give(pool.prefixes.pop(name).blocks)

    def spend(self, phase: Phase, began_ns: int) -> None:
        """Its GPUs have, since then."""
        self.use.spend(phase, self.places, began_ns, self.use.now_ns)

    # ---- requests --------------------------------------------------------------------------------

    def asked(self, prompt: Any, sampling: SamplingParams) -> Asked:
        """One prompt.

        Raises
        ------
        ValueError
            It is longer than the model's longest sequence.
        """
        text, ids = prompt_of(prompt, self.model.count)
        room = self.engine.room(len(ids))
        if room <= 0:
            raise ValueError(
                f"The decoder prompt (length {len(ids)}) is longer than the maximum model length "
                f"of {self.engine.settings.max_model_len}."
            )
        made = sampling.length.output_tokens(room)
        return Asked(text=text, ids=ids, sampling=sampling, output_tokens=made)

    def requests_of(self, asked: Asked) -> list[Request]:
        """One for each answer; they share their prompt."""
        tokens = len(asked.ids)
        shared = tokens if self.engine.settings.enable_prefix_caching else 0
        return [
            self.engine.request(tokens, asked.output_tokens, asked.prefix, shared)
            for _ in range(asked.sampling.n)
        ]

    def number(self) -> str:
        """Of the next request."""
        return str(next(self._numbers))

    def begins(self) -> None:
        """A rollout, or one more request of it.

        Raises
        ------
        RuntimeError
            The engine sleeps.
        """
        if self.asleep:
            raise RuntimeError("the engine sleeps: call wake_up() before generate()")
        if not self._under_way:
            this_fiber().settle()
            self._began_ns = self.use.now_ns
        self._under_way += 1

    def ends(self) -> None:
        """One of them."""
        self._under_way -= 1
        if not self._under_way:
            self.spend("rollout", self._began_ns)

    def collective_rpc(
        self, method: str | Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> list[Any]:
        """In all workers; their answers in order of rank."""
        return self.workers.run(method, args, kwargs)


def _dtype(said: Any) -> torch.dtype:
    if isinstance(said, torch.dtype):
        return said
    found = getattr(torch, str(said), torch.bfloat16)
    return found if isinstance(found, torch.dtype) else torch.bfloat16
