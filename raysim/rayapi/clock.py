"""Virtual time for programs: ``time`` and ``datetime`` as an emulated process sees them.

While a program runs, the functions of these modules answer from the simulation's clock when they
are called by a fiber, and from the machine's otherwise. Time begins at ``EPOCH_S``. Reading a clock
takes ``READ_NS``, so that a loop which waits for a time to come ends.

Not modelled: time zones (the machine's), CPU time apart from wall time, clocks that differ by node.

This is the only file of the package that may import ``time``: it replaces it, and owns the
stopwatch.
"""

from __future__ import annotations

import datetime as dt
import time as time_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from typing import Any

from raysim.rayapi.fibers import HUB, Fiber

EPOCH_S = 1_767_225_600
"""2026-01-01 00:00 UTC."""

READ_NS = 1_000

host_ns: Callable[[], int] = time_module.perf_counter_ns
"""The stopwatch of this machine."""

_REAL = {name: getattr(time_module, name) for name in (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
    "process_time", "process_time_ns", "thread_time", "thread_time_ns", "sleep", "localtime",
    "gmtime", "ctime", "asctime", "strftime",
)}  # fmt: skip
_RealDatetime = dt.datetime
_RealDate = dt.date
_LOADS = {name: getattr(ExtensionFileLoader, name) for name in ("create_module", "exec_module")}


def fiber_ns(fiber: Fiber) -> int:
    """Where the program is: the clock and what it is ahead of it, from the session's start."""
    return fiber.process.session.now_ns + fiber.lead_ns + fiber.computed_ns


def _read(fiber: Fiber) -> int:
    session = fiber.process.session
    if session.compute.running and not fiber.depth:
        session.compute.end(fiber)
        session.compute.begin(fiber)
    if session.compute.mode != "measured":
        fiber.pay(READ_NS)
    return fiber_ns(fiber)


def sleep_s(fiber: Fiber, seconds: float) -> None:
    """``time.sleep`` of a program."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    session = fiber.process.session
    if session.compute.running and not fiber.depth:
        session.compute.end(fiber)
        session.settle_compute(fiber)
    fiber.sleep(fiber.take_lead() + round(seconds * 1e9))
    if session.compute.running and not fiber.depth:
        session.compute.begin(fiber)


def _clock(name: str) -> Callable[[], Any]:
    real, whole = _REAL[name], name.endswith("_ns")
    start_ns = EPOCH_S * 10**9 if name.startswith("time") else 0

    def read() -> Any:
        fiber = HUB.here()
        if fiber is None:
            return real()
        now_ns = start_ns + _read(fiber)
        return now_ns if whole else now_ns / 1e9

    read.__name__ = name
    return read


def _sleep(seconds: float) -> None:
    fiber = HUB.here()
    if fiber is None:
        _REAL["sleep"](seconds)
    else:
        sleep_s(fiber, seconds)


def _of_now(name: str) -> Callable[..., Any]:
    """``localtime``, ``gmtime`` and ``ctime``: of now unless told."""
    real = _REAL[name]

    def convert(seconds: float | None = None) -> Any:
        fiber = HUB.here()
        if seconds is None and fiber is not None:
            seconds = EPOCH_S + _read(fiber) / 1e9
        return real(seconds)

    convert.__name__ = name
    return convert


def _strftime(pattern: str, moment: Any = None) -> str:
    if moment is None:
        moment = time_module.localtime()
    return str(_REAL["strftime"](pattern, moment))


def _asctime(moment: Any = None) -> str:
    return str(_REAL["asctime"](time_module.localtime() if moment is None else moment))


class _AlsoReal(type):
    """A real ``datetime`` is an instance of the virtual class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


class _VirtualDatetime(_RealDatetime, metaclass=_AlsoReal):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        if HUB.here() is None:
            return _RealDatetime.now(tz)
        return _RealDatetime.fromtimestamp(time_module.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()

    def __reduce__(self) -> Any:
        return _RealDatetime.__reduce__(self)

    def __repr__(self) -> str:
        return _in_module(_VirtualDatetime, self, _RealDatetime.__repr__(self))


class _VirtualDate(_RealDate, metaclass=_AlsoReal):
    @classmethod
    def today(cls) -> Any:
        return _VirtualDatetime.now().date()

    def __repr__(self) -> str:
        return _in_module(_VirtualDate, self, _RealDate.__repr__(self))


def _in_module(kind: type, value: object, said: str) -> str:
    """What C says of itself, as it does of its own classes and not of a program's."""
    return f"datetime.{said}" if type(value) is kind else said


_VirtualDatetime.__name__ = _VirtualDatetime.__qualname__ = "datetime"
_VirtualDate.__name__ = _VirtualDate.__qualname__ = "date"
_VirtualDatetime.__module__ = _VirtualDate.__module__ = "datetime"


def install() -> None:
    """Programs see virtual time from here on."""
    clocks = [name for name in _REAL if name.split("_")[0] in
              ("time", "monotonic", "perf", "process", "thread")]  # fmt: skip
    replaced: dict[str, Callable[..., Any]] = {name: _clock(name) for name in clocks}
    replaced |= {name: _of_now(name) for name in ("localtime", "gmtime", "ctime")}
    replaced |= {"sleep": _sleep, "strftime": _strftime, "asctime": _asctime}
    for name, function in replaced.items():
        setattr(time_module, name, function)
    dt.datetime = _VirtualDatetime  # type: ignore[misc]
    dt.date = _VirtualDate  # type: ignore[misc]
    for name, method in _LOADS.items():
        setattr(ExtensionFileLoader, name, _unpatched(method))


def remove() -> None:
    """The machine's time again."""
    for name, function in _REAL.items():
        setattr(time_module, name, function)
    dt.datetime = _RealDatetime  # type: ignore[misc]
    dt.date = _RealDate  # type: ignore[misc]
    for name, method in _LOADS.items():
        setattr(ExtensionFileLoader, name, method)


def _unpatched(load: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of modules of C code that a program imports: they take the size of the classes they find."""

    def real(loader: Any, what: Any) -> Any:
        with real_datetime():
            return load(loader, what)

    return real


def import_pandas() -> Any:
    """pandas."""
    return import_unpatched("pandas")


def import_unpatched(name: str) -> Any:
    """A package whose C code must not be loaded while ``datetime`` is replaced."""
    with real_datetime():
        return import_module(name)


@contextmanager
def real_datetime() -> Iterator[None]:
    """Around code that may load such a package when it sees fit; no program runs meanwhile."""
    virtual = dt.datetime, dt.date
    dt.datetime, dt.date = _RealDatetime, _RealDate  # type: ignore[misc]
    try:
        yield
    finally:
        dt.datetime, dt.date = virtual  # type: ignore[misc]
