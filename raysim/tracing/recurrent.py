"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` as CUDA has them: one call of cuDNN for all layers.

Real counterpart: ``_cudnn_rnn`` (``aten/src/ATen/native/cudnn/RNN.cpp``). The meta device would run
every step of every layer by itself. cuDNN keeps a reserve space for backward: of each layer,
direction, sample and step the gates and the cell's state, of a GRU the gates of both products, and
where it drops between two layers what it hands on and, of each direction that is given it, a bit of
mask. An LSTM of two layers and 650 units kept 128,492,256 bytes so, one of 1,500 593,040,256, a GRU
of four layers of 512 units both ways 890,880,256: this to 256 bytes.

Not modelled: packed sequences, projections (unrolled).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from raysim.models.shapes import Recurrent
from raysim.tracing.operators import Call
from raysim.tracing.recording import Listener

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
KERNELS_PER_STEP = 2
"""A product and what is by element, of each layer and direction; backward likewise."""


class _Cudnn(torch.autograd.Function):
    """One call: output and last states; input, output and the reserve space are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        listener: Listener,
        call: Call,
        make: Callable[[], tuple[torch.Tensor, ...]],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Shapes only."""
        *made, reserve = listener.fused(call, make, given)
        ctx.save_for_backward(given[0], made[0], reserve)
        ctx.given = [(t.shape, t.dtype) for t in given]
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gradients of everything given."""
        made = (grads[0].new_empty(shape, dtype=dtype) for shape, dtype in ctx.given)
        return None, None, None, *made


def _run(
    listener: Listener, real: Callable[..., Any], name: str, x: torch.Tensor, hx: Any, *args: Any
) -> Any:
    """``torch.lstm`` and its like, for a batch of equal lengths; others as they are."""
    if isinstance(hx, torch.Tensor) and not isinstance(args[0], list):
        return real(x, hx, *args)
    weights, biased, layers, dropout, training, both, batch_first = args
    directions = 2 if both else 1
    states = (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)
    if len(weights) != layers * directions * (4 if biased else 2):
        return real(x, hx, *args)
    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    x, states = x.to(half), tuple(s.to(half) for s in states)
    rows, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    inputs = tuple(w.shape[1] for w in weights[:: 4 if biased else 2])
    shape = Recurrent(
        gates=GATES[name], width=states[0].shape[2], inputs=inputs, directions=directions,
        steps=float(steps), rows=float(rows), over_steps=not batch_first,
    )  # fmt: skip
    dropped = layers - 1 if dropout and training else 0

    def make() -> tuple[torch.Tensor, ...]:
        out = x.new_empty(*x.shape[:2], directions * shape.width)
        kept = x.new_empty(round(rows * steps * _kept(shape, dropped, x.element_size())))
        return out, *(x.new_empty(s.shape) for s in states), kept

    found = _Cudnn.apply(listener, _call(shape, x), make, x, *states, *weights)  # type: ignore[no-untyped-call]
    return tuple(found)


def _kept(shape: Recurrent, dropped: int, width: int) -> float:
    """Elements of the reserve space, of a sample and step."""
    kept = 2 * shape.gates if shape.gates == GATES["gru"] else shape.gates + 1
    handed = dropped * shape.directions
    mask = handed * shape.directions / 8 / width
    return shape.width * (len(shape.inputs) * kept + handed + mask)


def _call(shape: Recurrent, x: torch.Tensor) -> Call:
    flops = 2.0 * shape.steps * shape.rows * shape.weights
    output = shape.rows * shape.steps * shape.directions * shape.width
    kernels = round(KERNELS_PER_STEP * shape.steps * len(shape.inputs))
    moved = x.numel() + output
    return Call(
        name="_cudnn_rnn", kind="scan", flops=flops, flops_backward=2 * flops, moved=moved,
        moved_backward=2 * moved, output=output, kernels=kernels, kernels_backward=kernels,
        recurrent=shape,
    )  # fmt: skip


@contextmanager
def cudnn_recurrent(listener: Listener) -> Iterator[None]:
    """``torch.nn``'s recurrent layers are cuDNN's inside."""
    functions: Any = torch._VF  # noqa: SLF001 (where torch.nn looks them up)
    with ExitStack() as stack:
        for name in GATES:
            instead = partial(_run, listener, getattr(functions, name), name)
            stack.enter_context(patch.object(functions, name, instead, create=True))
        yield
