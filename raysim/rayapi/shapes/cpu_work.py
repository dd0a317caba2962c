"""What a script's thread does itself with tensors of the CPU: what it draws, casts, collates.

Real counterpart: torch's CPU kernels and the interpreter. Operators are priced by name, elements
and bytes, Python by the calls that are made (``perf.host_loops``): never by a clock, so that a run
is the same on every machine. Tensors of real numbers that the script has on the CPU have shapes
only, as those of the GPU; they are known by a mark that goes from what is made to what is made of
it, and ends with the copy to the GPU.

Not modelled: what other libraries compute in C (``FOREIGN``; said once), several threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raysim.perf.host_loops import (
    C_CALL_S,
    LARGEST_REUSED,
    NO_WORK,
    NUMBER_S,
    PYTHON_CALL_S,
    CpuOperator,
    Work,
)
from raysim.rayapi.fibers import HUB
from raysim.tracing.operators import tensors

MARK = "raysim_on_cpu"
FOREIGN = frozenset([
    "PIL", "albumentations", "av", "cv2", "datasets", "decord", "h5py", "librosa", "lmdb", "numpy",
    "pandas", "pyarrow", "scipy", "skimage", "soundfile", "tokenizers", "torchaudio", "zarr",
])  # fmt: skip
"""Libraries whose own C code computes samples, without operators of torch."""
_ONLOOKERS = (
    "/rayapi/clock.py", "/rayapi/compute.py", "/shapes/cpu_work.py", "/shapes/mode.py",
    "/torch/_compile.py", "/torch/_dynamo/eval_frame.py", "/torch/utils/_python_dispatch.py",
)  # fmt: skip
"""Files whose frames, and what they call, are there because raysim looks on."""
_UNTOUCHED = frozenset(["empty", "empty_like", "empty_strided", "new_empty"])
_INDICES = {"index": 1, "index_select": 2, "gather": 2, "embedding": 1, "masked_select": 1}
"""Operators that pick, and where among their arguments they are told what."""


def is_on_cpu(args: Any, kwargs: Mapping[str, Any], *, makes: bool) -> bool:
    """Whether a function of torch works on the CPU; ``makes``: tensors of none."""
    device = kwargs.get("device")
    if makes and device is not None:
        return str(device).startswith("cpu")
    found = makes
    for tensor in near((*args, *kwargs.values())):
        if tensor.is_meta and not hasattr(tensor, MARK):
            return False
        found = True
    return found


def near(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among a function's arguments and in their lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (v for v in value if isinstance(v, torch.Tensor))


def stays_on_cpu(out: Any) -> Any:
    """What was made there, marked."""
    for tensor in near(out if isinstance(out, tuple | list) else (out,)):
        if tensor.is_meta and not hasattr(tensor, "raysim_on_gpu"):
            setattr(tensor, MARK, True)
    return out


def leaves_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Another one for the GPU, where the script keeps its own."""
    if not hasattr(tensor, MARK):
        return tensor
    made = tensor.clone() if tensor.requires_grad else torch.empty_like(tensor)
    if hasattr(tensor, "raysim_values"):
        made.raysim_values = tensor.raysim_values  # type: ignore[attr-defined]
    return made


class CpuCounting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Prices operators, all of which run on the CPU."""

    def __init__(self, threads: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = NO_WORK
        self.off = False
        """What runs is the GPU's."""
        self._threads = threads
        self._largest = self._made = 0
        self._fresh = NO_WORK

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it."""
        out = func(*args, **(kwargs or {}))
        if self.off:
            return out
        operator = _operator(func, args, kwargs or {}, out, self._threads)
        self.work += operator.work
        self._fresh += operator.fresh
        self._made += operator.made_bytes
        self._largest = max(self._largest, operator.made_bytes)
        return out

    def read(self, numbers: int) -> None:
        """Of Python's lists."""
        self.work += Work(numbers * NUMBER_S)

    @property
    def with_memory(self) -> Work:
        """All of it, where the largest tensor is more than the process keeps memory for.

        Such a batch and its samples are new pages; what is made in between is soon free again.
        """
        if self._largest <= LARGEST_REUSED:
            return self.work
        return self.work + self._fresh * min(1.0, 2 * self._largest / self._made)


@contextmanager
def unpriced(counting: CpuCounting | None) -> Iterator[None]:
    """What runs is no work of the CPU's."""
    before = counting is None or counting.off
    if counting is not None:
        counting.off = True
    try:
        yield
    finally:
        if counting is not None:
            counting.off = before


def _operator(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, threads: int | None
) -> CpuOperator:
    name = func.overloadpacket.__name__
    if func.is_view:
        return CpuOperator(name=name, is_view=True)
    given, made = list(tensors((args, kwargs))), list(tensors(out))
    there = {id(t) for t in given}
    moved = sum(t.nbytes for t in made)
    if name in _INDICES:
        picked = max((t.numel() for t in tensors(args[_INDICES[name]])), default=0)
        moved *= 2
    else:
        picked = 0
        moved += sum(t.nbytes for t in given)
    return CpuOperator(
        name=name, elements=max((t.numel() for t in (*given, *made)), default=0), pieces=picked,
        tensors=len(given), moved_bytes=0 if name in _UNTOUCHED else moved,
        made_bytes=sum(t.nbytes for t in made if id(t) not in there), threads=threads,
    )  # fmt: skip


class _Interpreter:
    """Counts calls of Python and C functions in one fiber, while others count theirs."""

    _counting: ClassVar[dict[Any, _Interpreter]] = {}
    """By fiber: one may begin before another has ended, and end after it."""
    _before: ClassVar[Any] = None
    """Whose profiler the thread had."""

    def __init__(self) -> None:
        self.python = self.c = 0
        self.foreign: set[str] = set()
        self._looks_on: dict[Any, bool] = {}
        self._inside = 0
        """Frames of onlookers on the stack."""
        self._fiber = HUB.current
        self._outer: _Interpreter | None = None

    def __enter__(self) -> _Interpreter:
        if not self._counting:
            _Interpreter._before = sys.getprofile()
            sys.setprofile(_event)
        self._outer = self._counting.get(self._fiber)
        self._counting[self._fiber] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._counting[self._fiber]
        if self._outer is not None:
            self._counting[self._fiber] = self._outer
        if not self._counting:
            _put_back(self._before)

    def event(self, frame: Any, event: str, arg: Any) -> None:
        """As ``sys.setprofile`` tells it."""
        code = frame.f_code
        looks_on = self._looks_on.get(code)
        if looks_on is None:
            looks_on = self._looks_on[code] = code.co_filename.endswith(_ONLOOKERS)
        if looks_on:
            self._inside = max(0, self._inside + (event == "call") - (event == "return"))
        elif self._inside:
            return
        elif event == "call":
            self.python += 1
        elif event == "c_call":
            self.c += 1
            self._look(arg)

    def _look(self, function: Any) -> None:
        owner = getattr(function, "__module__", None)
        if not owner:
            owner = type(getattr(function, "__self__", None)).__module__
        top = str(owner).partition(".")[0]
        if top in FOREIGN:
            self.foreign.add(top)

    @property
    def work(self) -> Work:
        """Of all calls."""
        return Work(self.python * PYTHON_CALL_S + self.c * C_CALL_S)


def _put_back(profiler: Any) -> None:
    """The thread's; ``cProfile``'s is an object, not a function."""
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:
        sys.setprofile(None)
        profiler.enable()


def _event(frame: Any, event: str, arg: Any) -> None:
    counting = _Interpreter._counting.get(HUB.current)  # noqa: SLF001
    if counting is not None:
        counting.event(frame, event, arg)


@contextmanager
def counting_in(mode: Any, threads: int | None) -> Iterator[CpuCounting]:
    """Operators of the CPU, by so many threads (None: one a core), under a worker's mode."""
    counting, before = CpuCounting(threads), mode.counting
    mode.counting = counting
    try:
        with counting:
            yield counting
    finally:
        mode.counting = before


def priced(
    mode: Any, run: Callable[[], Any], threads: int | None
) -> tuple[Any, Work, frozenset[str]]:
    """What ``run`` returns, what it takes, and whose C code it calls that nobody has priced."""
    with counting_in(mode, threads) as counting, _Interpreter() as interpreter:
        out = run()
    return out, counting.with_memory + interpreter.work, frozenset(interpreter.foreign)
