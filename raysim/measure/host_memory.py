"""What threads do over main memory: DeepSpeedCPUAdam, and the passes around it, by their number.

Tensors are far larger than any cache. Bytes are those that each kernel reads and writes of its
operands; a copy's target is read once more before it is written, which is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from raysim.measure.machine import installed
from raysim.measure.session import Point, Session, Unavailable, repeat, stopwatch

TABLE = "host_memory"
COLUMNS = ("threads", "quantity", "elements", "bytes")
ELEMENTS = 10**8
QUICK_ELEMENTS = 10**5
BYTES = {
    "cpu_adam": 28, "adamw_fused": 28, "in_place": 8, "norm": 4, "cast": 6, "cast_to_new": 6,
}  # fmt: skip
"""Of one fp32 element: p, m and v read and written and g read; read and written; read; read and its
bf16 written, into memory that was there or that the kernel provides."""


def measure(session: Session) -> None:
    """Fill ``host_memory.csv``: one thread, and as many as torch takes by itself."""
    import torch

    most = torch.get_num_threads()
    try:
        with session.table(TABLE, COLUMNS) as table:
            session.run(table, points(most, quick=session.quick))
    finally:
        torch.set_num_threads(most)


def points(most: int, *, quick: bool) -> Iterator[Point]:
    """Every quantity, by one thread and by ``most``."""
    elements = QUICK_ELEMENTS if quick else ELEMENTS
    quantities = [q for q in BYTES if not quick or q != "cpu_adam"]  # its compilation takes minutes
    for threads in sorted({1, most}):
        for quantity in quantities:
            parameters = {
                "threads": threads, "quantity": quantity, "elements": elements,
                "bytes": BYTES[quantity] * elements,
            }  # fmt: skip
            yield Point(
                parameters=parameters, measure=partial(_seconds, threads, quantity, elements)
            )


def _seconds(threads: int, quantity: str, elements: int, allowed_s: float) -> Sequence[float]:
    import torch

    torch.set_num_threads(threads)  # DeepSpeed's kernels have the same OpenMP
    return repeat(stopwatch(_work(quantity, elements)), allowed_s)


def _work(quantity: str, elements: int) -> Callable[[], object]:
    """One pass."""
    import torch

    weights: Any = torch.nn.Parameter(torch.zeros(elements))
    values = weights.data
    if quantity in ("cpu_adam", "adamw_fused"):
        weights.grad = torch.full_like(values, 1e-3)
        return _adam(quantity, weights)
    low = torch.zeros(elements, dtype=torch.bfloat16)
    work: dict[str, Callable[[], object]] = {
        "in_place": lambda: values.mul_(1.0), "norm": lambda: values.norm(2),
        "cast": lambda: low.copy_(values), "cast_to_new": lambda: values.to(torch.bfloat16),
    }  # fmt: skip
    return work[quantity]


def _adam(quantity: str, weights: Any) -> Callable[[], object]:
    import torch

    if quantity == "adamw_fused":
        return torch.optim.AdamW([weights], lr=1e-4, fused=True).step
    if installed("deepspeed") is None:
        raise Unavailable("deepspeed is not installed")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    try:
        return DeepSpeedCPUAdam([weights], lr=1e-4).step  # type: ignore[no-any-return]
    except (RuntimeError, OSError) as error:  # its kernels are compiled when they are first used
        raise Unavailable(f"DeepSpeed's kernels: {error}") from None
