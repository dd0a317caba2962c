"""What an operator costs before it computes anything.

``dispatch``: seconds of the host per call that only queues (on a CPU: the whole call).
``kernel``: seconds of the device per kernel of one element, back to back, all queued before.
``round_trip``: launch, run, and wait until the host knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from raysim.measure.gpu.device import QUEUED, Device
from raysim.measure.session import Point, repeat, stopwatch

TABLE = "launch"
COLUMNS = ("device", "threads", "quantity", "op")


def points(device: Device, *, quick: bool) -> Iterator[Point]:  # noqa: ARG001  (small anyway)
    """``add_`` of one element: one kernel; a linear layer's forward and its autograd nodes."""
    for op in ("add_", "linear", "linear_backward"):
        yield _point(device, "dispatch", op)
    if device.is_gpu:
        yield _point(device, "kernel", "add_")
        yield _point(device, "round_trip", "add_")


def _point(device: Device, quantity: str, op: str) -> Point:
    def measure(allowed_s: float) -> list[float]:
        work = _work(device, op)
        if quantity == "kernel":
            return device.times(work, allowed_s)
        if quantity == "round_trip":
            import torch

            def there_and_back() -> None:
                work()
                torch.cuda.synchronize()

            return repeat(stopwatch(there_and_back), allowed_s)
        return repeat(_queueing(device, work), allowed_s, inner_most=QUEUED)

    parameters = {"quantity": quantity, "op": op}
    return device.point(parameters, measure)


def _queueing(device: Device, work: Callable[[], object]) -> Callable[[int], float]:
    """Host seconds of one call into an empty queue."""
    seconds = stopwatch(work)

    def sample(times: int) -> float:
        if device.is_gpu:
            import torch

            torch.cuda.synchronize()
        return seconds(times)

    return sample


def _work(device: Device, op: str) -> Callable[[], object]:
    import torch

    one = torch.zeros(1, device=device.name)
    if op == "add_":
        return lambda: one.add_(1)
    layer, x = torch.nn.Linear(1, 1, device=device.name), one.view(1, 1)
    if op == "linear":
        return lambda: layer(x)
    return lambda: layer(x).backward()
