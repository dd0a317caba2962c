"""What one device does: products, attention, bandwidth, optimizer, launches, copies, memory."""

from __future__ import annotations

from raysim.measure.gpu import (
    attention,
    convolution,
    copies,
    dispatch,
    elementwise,
    gemm,
    launch,
    memory,
    optimizer,
    sustained,
    workspace,
)
from raysim.measure.gpu.device import choose
from raysim.measure.session import Session

__all__ = ["measure"]

TABLES = (
    memory,
    launch,
    dispatch,
    copies,
    elementwise,
    gemm,
    convolution,
    workspace,
    attention,
    optimizer,
    sustained,
)
"""Memory first, before any library keeps a workspace in the allocator's cache; then cheap and most
telling. Each gets an equal share of the time that is left."""


def measure(session: Session) -> None:
    """Fill one table per module.

    Raises
    ------
    CalibrationError
        torch or the device asked for is not there.
    """
    device = choose(session.device)
    for index, module in enumerate(TABLES):
        points = list(module.points(device, quick=session.quick))
        if points:
            with session.table(module.TABLE, module.COLUMNS) as table:
                session.run(table, points, share=1 / (len(TABLES) - index))
