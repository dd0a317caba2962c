"""What operators cost the host of a GPU: chains of one, so small that the host is the slower.

A chain of :data:`LENGTH` operators runs forward, then backward; a value is the time until the host
has queued it, over the length. Kernels take some 2 us. ``autocast`` runs the chain under it, each
link with weights of its own, as layers have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from raysim.measure.gpu.device import Device
from raysim.measure.session import Point, repeat

TABLE = "dispatch"
COLUMNS = ("device", "threads", "op", "way", "autocast")
LENGTH = 24
WIDTH = 32
OPERATORS = (
    "add", "mul", "silu", "to", "view", "transpose", "contiguous", "cat", "dropout", "softmax",
    "layer_norm", "group_norm", "batch_norm", "linear", "linear_bias", "matmul", "sdpa",
    "sdpa_causal", "conv2d", "conv2d_bias", "max_pool2d", "sum", "index",
)  # fmt: skip
CASTS = frozenset({"linear", "linear_bias", "matmul", "conv2d", "layer_norm", "softmax"})
"""Measured under autocast too."""


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Each operator, both ways; on a GPU alone."""
    if not device.is_gpu and not quick:
        return
    for op, autocast in product(OPERATORS[:1] if quick else OPERATORS, (False, True)):
        if not autocast or op in CASTS:
            for way in ("forward", "backward"):
                yield _point(device, op, way, autocast)


def _point(device: Device, op: str, way: str, autocast: bool) -> Point:
    def measure(allowed_s: float) -> Sequence[float]:
        import torch

        link, x = _chain(device, op)

        def sample(_: int) -> float:
            if device.is_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.autocast(device.name, dtype=torch.bfloat16, enabled=autocast):
                y = x
                for i in range(LENGTH):
                    y = link(i, y)
            forward = time.perf_counter() - began
            if way == "forward":
                return forward / LENGTH
            total = y.float().sum()
            if device.is_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            total.backward()
            return (time.perf_counter() - began) / LENGTH

        return repeat(sample, allowed_s, inner_most=1)

    parameters = {"op": op, "way": way, "autocast": int(autocast)}
    return device.point(parameters, measure)


def _chain(device: Device, op: str) -> tuple[Callable[[int, Any], Any], Any]:
    """The operator with weights for each link, and the first input."""
    import torch
    from torch.nn import functional as f

    def made(*shape: int) -> list[Any]:
        return [torch.randn(shape, device=device.name).requires_grad_() for _ in range(LENGTH)]

    square, row = made(WIDTH, WIDTH), made(WIDTH)
    kernels = made(WIDTH, WIDTH, 3, 3)
    mean, var = torch.zeros(WIDTH, device=device.name), torch.ones(WIDTH, device=device.name)
    image = op in {"conv2d", "conv2d_bias", "max_pool2d", "batch_norm", "group_norm"}
    heads = op in {"sdpa", "sdpa_causal"}
    places = torch.arange(WIDTH, device=device.name)
    shape = (2, WIDTH, 8, 8) if image else (2, 2, WIDTH, WIDTH) if heads else (WIDTH, WIDTH)
    x: Any = torch.randn(shape, device=device.name).requires_grad_()
    if heads:
        x = x.bfloat16()
    attend = f.scaled_dot_product_attention
    links: dict[str, Callable[[int, Any], Any]] = {
        "add": lambda i, y: y + square[i],
        "mul": lambda i, y: y * square[i],
        "silu": lambda _, y: f.silu(y),
        "to": lambda i, y: y.to(torch.float32 if i % 2 else torch.bfloat16),
        "view": lambda i, y: y.view(-1, 1 + i % 2),
        "transpose": lambda _, y: y.transpose(0, 1),
        "contiguous": lambda _, y: y.t().contiguous(),
        "cat": lambda _, y: torch.cat((y[:1], y[1:])),
        "dropout": lambda _, y: f.dropout(y, 0.1),
        "softmax": lambda _, y: f.softmax(y, dim=-1),
        "layer_norm": lambda i, y: f.layer_norm(y, (WIDTH,), row[i], row[i - 1]),
        "group_norm": lambda i, y: f.group_norm(y, 8, row[i], row[i - 1]),
        "batch_norm": lambda i, y: f.batch_norm(y, mean, var, row[i], row[i - 1], training=True),
        "linear": lambda i, y: f.linear(y, square[i]),
        "linear_bias": lambda i, y: f.linear(y, square[i], row[i]),
        "matmul": lambda i, y: y @ square[i],
        "sdpa": lambda _, y: attend(y, y, y),
        "sdpa_causal": lambda _, y: attend(y, y, y, is_causal=True),
        "conv2d": lambda i, y: f.conv2d(y, kernels[i], padding=1),
        "conv2d_bias": lambda i, y: f.conv2d(y, kernels[i], row[i], padding=1),
        "max_pool2d": lambda _, y: f.max_pool2d(y, 3, 1, 1),
        "sum": lambda _, y: y.sum(0, keepdim=True).expand(WIDTH, -1),
        "index": lambda _, y: y[places],
    }
    return links[op], x
