"""What a script has the GPU do itself, beside model, loss and optimizer.

Real counterpart: torch functions that a training loop calls on tensors of the GPU: moving averages
of weights, noise and batches that are made there, metrics; copies to the GPU; waits for a value.
Likewise what it does with tensors of the CPU (``shapes.cpu_work``): batches drawn there, casts.
Each function is run once under a mode that counts ATen operators, kernels and bytes, and is known
by its shapes from then on. What came between two updates belongs to the later step, spread over its
micro-batches.

Not modelled: operators of a first step, which are its set-up too; where in a step they run (before
its forward); what libraries' loops compute in Python (``perf.host.LOOPS`` has what they take).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raysim.perf.host import LOOPS
from raysim.perf.host_loops import NO_WORK, CpuOperator, Work
from raysim.perf.kernels import Dtype
from raysim.perf.shares import COMPILED_TRAFFIC_SHARE
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.shapes.cpu_work import counting_in
from raysim.rayapi.shapes.prediction import Forward
from raysim.tracing import composite, operators
from raysim.tracing.walk import in_compiled_function
from raysim.training.compiler.feed import Feed, Own, Product

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_DTYPES: Mapping[torch.dtype, Dtype] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Of products; others are taken for fp32's."""


@dataclass(slots=True)
class Count:
    """What has been called."""

    operators: int = 0
    kernels: int = 0
    moved_bytes: int = 0
    """By the GPU."""
    products: Counter[Product] = field(default_factory=Counter)
    on_cpu: Work = NO_WORK
    """The host's own."""

    def add(self, more: Count) -> None:
        """Called after it."""
        self.operators += more.operators
        self.kernels += more.kernels
        self.moved_bytes += more.moved_bytes
        if more.products:
            self.products += more.products
        self.on_cpu = self.on_cpu + more.on_cpu

    def own(self, share: float = 1.0) -> Own:
        """For each of so many parts alike."""
        return Own(
            operators=self.operators * share, kernels=self.kernels * share,
            moved_bytes=self.moved_bytes * share, on_cpu=self.on_cpu * share,
            products=tuple((p, n * share) for p, n in sorted(self.products.items())),
        )  # fmt: skip


class OwnWork:
    """Of one worker, since its last update."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._known: dict[Any, Count] = {}
        self._count = Count()
        self._copied_bytes = self._pageable_bytes = 0
        self._waits = 0
        self._forwards: list[Forward] = []
        self._passed = False
        """A step has been taken: what is called from then on is no set-up."""
        self.paused = False
        """What is called is an update by hand, which the step has been priced with."""
        self.learns = False
        """What a function takes the GPU: it is really run, whatever others remember of it."""

    @property
    def counts(self) -> bool:
        """Whether what is called now is the script's own."""
        steps = self._steps
        busy = steps.inside or steps.between_passes or steps.mode.tracing or steps.mode.on_host
        begun = (self._passed and not self.paused) or steps.worker.answers
        return begun and not busy and not steps.optimizers.updating

    def taken(self) -> Own:
        """What has come since the last time, of a process that trains nothing."""
        found, self._count = self._count, Count()
        return found.own()

    def call(self, key: Any, run: Callable[[], Any], *, on_cpu: bool = False) -> Any:
        """Run a function of torch; ``key`` None: what it does depends on values."""
        key = key if key is None else (key, on_cpu)
        found = self._known.get(key) if key is not None else None
        if found is not None:
            out = run()
        else:
            out, found = self._on_cpu(run) if on_cpu else self._on_gpu(run)
            if key is not None:
                self._known[key] = found
        self._count.add(found)
        return out

    def on_values(self, key: Any, func: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run a function of values of the CPU (``shapes.host_values``)."""
        if not self.counts:
            return func(*args)
        found = self._known.get(key)
        if found is None:
            out, self._known[key] = self._on_cpu(partial(func, *args))
            found = self._known[key]
        else:
            out = func(*args)
        self._count.add(found)
        return out

    def _on_cpu(self, run: Callable[[], Any]) -> tuple[Any, Count]:
        steps = self._steps
        with counting_in(steps.mode, steps.host_threads) as counting:
            out = run()
        return out, Count(on_cpu=counting.with_memory)

    def _on_gpu(self, run: Callable[[], Any]) -> tuple[Any, Count]:
        self.learns, counting = True, _Counting()
        try:
            with counting:
                out = run()
        finally:
            self.learns = False
        return out, counting.count

    def heard(self, run: Callable[[], Any]) -> tuple[Count, int]:
        """What a script's own optimizer has the GPU do in a step, and how long others take."""
        before = _now_ns()
        _, count = self._on_gpu(run)
        return count, _now_ns() - before

    def again(self, count: Count, exchanged_ns: int) -> None:
        """It steps once more."""
        self._count.add(count)
        if exchanged_ns:
            self._steps.worker.sleep_ns(exchanged_ns)

    def copied(self, tensor: torch.Tensor) -> None:
        """It goes to the GPU, unless it has been there."""
        if getattr(tensor, "raysim_on_gpu", False):
            return
        if self._steps.worker.answers:
            pinned = hasattr(tensor, "raysim_pinned")
            self._steps.worker.copies(tensor.nbytes, "h2d", pinned=pinned)
        else:
            self._copied_bytes += tensor.nbytes
            if not hasattr(tensor, "raysim_pinned"):
                self._pageable_bytes += tensor.nbytes

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The script copies it to memory of the CPU that the GPU can read."""
        if self.counts and not hasattr(tensor, "raysim_pinned"):
            more = CpuOperator(name="_pin_memory", moved_bytes=2 * tensor.nbytes).work
            self._count.add(Count(on_cpu=more))
        tensor.raysim_pinned = True  # type: ignore[attr-defined]
        return tensor

    def waited(self) -> None:
        """For a value, or for all that was queued."""
        self._waits += 1
        self._steps.worker.awaits_stream()

    def called(self, forward: Forward) -> None:
        """A model's, that learns nothing by it."""
        self._forwards.append(forward)

    def _beside(self, micro_batches: int) -> tuple[tuple[float, float], ...]:
        """Forwards of one micro-batch, all alike, or a share of each."""
        each, left = divmod(len(self._forwards), micro_batches)
        if not left:
            return tuple(part for f in self._forwards[:each] for part in f.parts)
        return tuple(
            (host_s / micro_batches, seconds / micro_batches)
            for f in self._forwards for host_s, seconds in f.parts
        )  # fmt: skip

    def feed(self, loaded: Feed | None, input_bytes: int, micro_batches: int) -> Feed:
        """What each micro-batch of the step under way costs; ``loaded``: by a loader's account."""
        if not self._passed:
            return loaded or Feed(copy_bytes=input_bytes)
        own = replace(
            self._count.own(1 / micro_batches), waits=self._waits >= micro_batches, loop=_loop(),
            beside=self._beside(micro_batches),
        )  # fmt: skip
        feed = loaded or Feed(
            copy_bytes=self._copied_bytes / micro_batches,
            pageable=2 * self._pageable_bytes > self._copied_bytes,
        )
        return replace(feed, own=own)

    def step_taken(self) -> None:
        """What comes now belongs to the next."""
        self._count, self._waits, self._passed = Count(), 0, True
        self._copied_bytes = self._pageable_bytes = 0
        self._forwards = []


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is done on the GPU, whose tensors have shapes only."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = Count()
        self._fuses = False
        """What ran last is part of a compiled kernel that takes what comes next, too."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it."""
        out, parts = composite.run(func, args, kwargs or {})
        for part in parts:
            self._note(part)
        return out

    def _note(self, part: composite.Part) -> None:
        given = (part.args, part.kwargs)
        if part.func is torch.ops.aten.detach.default:
            return
        if not any(t.is_meta for t in operators.tensors((given, part.out))):
            return
        count, name = self.count, operators.aten_name(part.func)
        compiled = in_compiled_function()
        count.operators += not compiled
        if operators.launches_nothing(part.func, name):
            return
        shape = operators.product_shape(name, part.args, part.out, batch=1, counts=_on_meta)
        fused, self._fuses = self._fuses and compiled, compiled and shape is None
        kernels = 0 if fused and shape is None else operators.kernels(name, part.args, part.out)
        count.kernels += kernels
        count.operators += kernels * compiled
        if shape is None:
            moved = operators.moved(name, given, part.out, width=1, counts=_on_meta)
            count.moved_bytes += round(moved * (COMPILED_TRAFFIC_SHARE if compiled else 1.0))
        else:
            dtype = _DTYPES.get(next(operators.tensors(part.out)).dtype, "fp32")
            count.products[Product(dtype, shape.rows, shape.n, shape.k, shape.groups)] += 1


def _now_ns() -> int:
    """Of the worker's thread."""
    fiber = this_fiber()
    return fiber.process.session.now_ns + fiber.lead_ns


def _on_meta(tensor: torch.Tensor) -> bool:
    return tensor.is_meta


def _loop() -> str:
    """The library whose loop calls the optimizer; none: ``""``."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  (the stack has no other door)
    found = set()
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return next((name for name in LOOPS if name in found), "")
