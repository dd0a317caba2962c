"""Attention cores: the kernels behind ``scaled_dot_product_attention``, and flash-attn's own.

``forward`` is the core alone without gradients kept; ``backward`` is the gradient of q, k and v
from one saved forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.machine import installed
from raysim.measure.session import Point

TABLE = "attention"
COLUMNS = (
    "device", "threads", "dtype", "kernel", "direction", "causal",
    "batch", "heads", "kv_heads", "seq", "head_dim",
)  # fmt: skip
KERNELS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
"""sdpa's backends; ``flash_attn`` is the package of that name."""

Shape = tuple[int, int, int, int, int]
"""Batch, heads, heads of keys and values, sequence, head's width."""
GPU_SHAPES: tuple[Shape, ...] = (
    (1, 32, 8, 512, 128), (1, 32, 8, 2048, 128), (1, 32, 8, 8192, 128), (1, 32, 8, 32768, 128),
    (4, 32, 32, 2048, 128), (8, 12, 12, 1024, 64), (16, 16, 16, 512, 64), (4, 40, 40, 4096, 128),
    (2, 32, 8, 4096, 64), (4, 16, 16, 2048, 128), (32, 16, 16, 197, 64),
)  # fmt: skip
BOTH_WAYS = frozenset({(16, 16, 16, 512, 64), (4, 32, 32, 2048, 128), (32, 16, 16, 197, 64)})
"""Shapes that are measured without the causal mask as well, as encoders have them."""
CPU_SHAPES: tuple[Shape, ...] = (
    (1, 4, 4, 128, 64), (1, 4, 4, 512, 64), (1, 4, 4, 1024, 64), (4, 8, 8, 128, 32),
    (1, 8, 2, 512, 64), (2, 8, 8, 256, 64),
)  # fmt: skip
QUICK_SHAPES: tuple[Shape, ...] = ((1, 2, 1, 16, 16),)


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every kernel on every shape, forward and backward."""
    kernels: tuple[str, ...] = (
        ("flash", "cudnn", "efficient") if device.is_gpu else ("flash", "math")
    )
    if device.is_gpu and installed("flash-attn"):
        kernels += ("flash_attn",)
    shapes = GPU_SHAPES if device.is_gpu else CPU_SHAPES
    dtypes = ("bf16",) if device.is_gpu else ("fp32", "bf16")
    for shape in QUICK_SHAPES if quick else shapes:
        for dtype in dtypes:
            for kernel in kernels:
                for direction in ("forward", "backward"):
                    yield _point(device, dtype, kernel, direction, shape)
                    if shape in BOTH_WAYS:
                        yield _point(device, dtype, kernel, direction, shape, causal=False)


def _point(
    device: Device, dtype: str, kernel: str, direction: str, shape: Shape, *, causal: bool = True
) -> Point:
    batch, heads, kv_heads, seq, head_dim = shape

    def measure(allowed_s: float) -> list[float]:
        import torch

        backward = direction == "backward"
        q, k, v = (
            torch.randn(
                batch, n, seq, head_dim, device=device.name, dtype=dtype_of(dtype)
            ).requires_grad_(backward)
            for n in (heads, kv_heads, kv_heads)
        )
        core = _core(kernel, q, k, v, causal=causal)
        if not backward:
            return device.times(core, allowed_s)
        out = core()
        gradient = torch.randn_like(out)
        return device.times(
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), allowed_s
        )

    parameters = {
        "dtype": dtype, "kernel": kernel, "direction": direction, "causal": causal, "batch": batch,
        "heads": heads, "kv_heads": kv_heads, "seq": seq, "head_dim": head_dim,
    }  # fmt: skip
    return device.point(parameters, measure)


def _core(kernel: str, q: Any, k: Any, v: Any, *, causal: bool) -> Callable[[], Any]:
    """The forward pass of one kernel on ``[batch, heads, seq, head_dim]``."""
    if kernel == "flash_attn":
        from flash_attn import flash_attn_func

        turned = [x.transpose(1, 2) for x in (q, k, v)]  # it takes [batch, seq, heads, head_dim]
        return lambda: flash_attn_func(*turned, causal=causal)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    grouped = q.shape[1] != k.shape[1]

    def core() -> Any:
        with sdpa_kernel(getattr(SDPBackend, KERNELS[kernel])):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return core
