"""The device that torch measures on, and how time is taken there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.session import Point, Unavailable, needs, repeat, stopwatch

PLUG_SIDE = 4096
QUEUED = 100
"""Launches of one sample on a GPU: the plug keeps it busy until the host has queued them all."""
PLUGS = 64
"""Most products in a plug; what the host takes longer to queue is timed with the host's gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``cuda`` or ``cpu``; every table of this package has both fields as its first columns."""

    name: str
    threads: int
    """Of torch's operators on a CPU, 0 on a GPU."""

    @property
    def is_gpu(self) -> bool:
        """Whether time is taken by CUDA events."""
        return self.name == "cuda"

    @property
    def columns(self) -> dict[str, object]:
        """The first parameters of every row."""
        return {"device": self.name, "threads": self.threads}

    def times(self, work: Callable[[], object], allowed_s: float) -> list[float]:
        """Seconds of ``work`` on the device: samples for a row.

        On a GPU the host is not in the numbers: a product of large matrices keeps the device busy
        while the calls are queued, and CUDA events stand around them.
        """
        if self.is_gpu:
            return repeat(self._events(work), allowed_s, inner_most=QUEUED)
        return repeat(stopwatch(work), allowed_s)

    def point(
        self,
        parameters: Mapping[str, object],
        measure: Callable[[float], Sequence[float]],
        unit: str = "s",
    ) -> Point:
        """A row of this device; what it has no memory or no kernel for is left out, with reason."""

        def guarded(allowed_s: float) -> Sequence[float]:
            import torch

            try:
                return measure(allowed_s)
            except torch.OutOfMemoryError:
                raise Unavailable("does not fit into the device's memory") from None
            except RuntimeError as error:
                raise Unavailable(str(error).partition("\n")[0]) from None
            finally:
                if self.is_gpu:
                    torch.cuda.empty_cache()

        return Point(parameters=self.columns | dict(parameters), measure=guarded, unit=unit)

    def _events(self, work: Callable[[], object]) -> Callable[[int], float]:
        import torch

        new_event: Any = torch.cuda.Event  # untyped
        plug = torch.empty(PLUG_SIDE, PLUG_SIDE, device=self.name, dtype=torch.float32)

        plugs = 1

        def sample(times: int) -> float:
            nonlocal plugs
            while True:
                start, end = (new_event(enable_timing=True) for _ in range(2))
                for _ in range(plugs):
                    torch.mm(plug, plug)
                start.record()
                for _ in range(times):
                    work()
                held = not start.query()  # the plug outlasted the queueing
                end.record()
                end.synchronize()
                if held or plugs >= PLUGS:
                    return float(start.elapsed_time(end)) / 1e3 / times  # events count milliseconds
                plugs *= 2

        return sample


def choose(name: str | None) -> Device:
    """The device called ``cuda`` or ``cpu``; None takes the GPU where there is one.

    Raises
    ------
    CalibrationError
        torch is not installed, or sees no GPU where one is asked for.
    """
    needs("torch", "gpu")
    import torch

    found = torch.cuda.is_available()
    if name not in {None, "cuda", "cpu"}:
        raise CalibrationError(f"--device {name}: must be cuda or cpu")
    if name == "cuda" and not found:
        raise CalibrationError(
            f"--device cuda: torch {torch.__version__} sees no GPU here; --device cpu measures "
            "what has a meaning on a CPU"
        )
    if name == "cuda" or (name is None and found):
        return Device(name="cuda", threads=0)
    return Device(name="cpu", threads=torch.get_num_threads())


def dtype_of(name: str) -> Any:
    """``torch.dtype`` that operands of these names are made in: ``tf32``'s fp32, ``fp8``'s bf16."""
    import torch

    return {
        "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16,
        "fp32": torch.float32, "tf32": torch.float32,
    }[name]  # fmt: skip
