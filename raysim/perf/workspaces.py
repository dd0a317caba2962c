"""Bytes that cuDNN takes from torch's allocator while one of its calls runs.

Real counterpart: ``Conv_v8.cpp`` and ``RNN.cpp``. A convolution's are its operands and its result
as channels last, where torch has them first: beside the last ones of two networks, whose backward
was a step's peak, 151 and 153 MiB of copies lay in 151 and 155. Recurrent layers' are the gates of
all layers and steps: of a GRU's 375 MiB to 2 (four layers of 512 units both ways, 400 steps of 20
samples).

Rows of ``workspace.csv`` with ``benchmark`` from before 2026-11-28 tried nothing: their thread had
chosen already.

Not modelled: what ``torch.backends.cudnn.benchmark`` tries (all its plans at once: the largest
workspace among them, up to what is free; then the cache is emptied).
"""

from __future__ import annotations

from raysim.models.table import Operator
from raysim.perf.convolution import copied_bytes, partial_bytes


def workspace_bytes(
    op: Operator, batch: float, element_bytes: int, *, sms: int, backward: bool = False
) -> int:
    """Of one pass of an operator over a batch on a GPU of so many SMs; most take nothing."""
    if op.recurrent is None:
        parts = partial_bytes(op, batch, element_bytes, sms) if backward else 0
        return copied_bytes(op, batch, element_bytes) + parts
    shape = op.recurrent
    wide = shape.gates * shape.width * len(shape.inputs)
    return round(wide * shape.steps * shape.rows * batch * element_bytes)
