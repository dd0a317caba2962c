"""Convolutions by shape, type, memory format and pass; dense, strided, by channel, of patches, 1-D.

``forward`` is one call, ``backward`` gives the gradients of input and weight. FLOPs of a pass are
``2 batch out_side^dims channels_out channels_in kernel^dims / groups``, twice that backward. cuDNN
chooses by its heuristics (``torch.backends.cudnn.benchmark`` stays off, as it is unless asked for).
A layout ``last`` is torch's ``channels_last``; ``tf32`` is what fp32 convolutions are on a GPU
unless ``torch.backends.cudnn.allow_tf32`` is turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point

TABLE = "convolution"
Work = Callable[[], object]


class Convolution(NamedTuple):
    """A layer; ``side`` of the input in each of ``dims`` dimensions; padding is half a kernel."""

    batch: int
    channels_in: int
    channels_out: int
    side: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dims: int = 2

    @property
    def padding(self) -> int:
        """Patches, as wide as their stride, have none."""
        return 0 if self.kernel == self.stride else self.kernel // 2


COLUMNS = ("device", "threads", "dtype", "layout", "way", *Convolution._fields)

DENSE = [
    Convolution(32, channels, channels, side, kernel)
    for (channels, side), kernel in product(
        ((64, 64), (128, 32), (128, 64), (256, 32), (512, 16), (1024, 8)), (1, 3)
    )
]
"""Residual networks and U-Nets."""
OTHERS = [
    Convolution(32, 64, 256, 64, 1),
    Convolution(32, 512, 128, 16, 1),
    Convolution(32, 128, 256, 64, 3, stride=2),
    Convolution(32, 512, 512, 32, 3, stride=2),
    Convolution(32, 3, 64, 256, 7, stride=2),
    Convolution(32, 3, 768, 256, 16, stride=16),
    Convolution(32, 96, 192, 64, 2, stride=2),
    Convolution(32, 96, 96, 64, 7, groups=96),
    Convolution(32, 384, 384, 16, 7, groups=384),
    Convolution(32, 256, 256, 32, 3, groups=256),
    Convolution(16, 512, 512, 4096, 3, stride=2, dims=1),
    Convolution(16, 1, 512, 65536, 10, stride=5, dims=1),
]
CPU = [Convolution(4, 32, 32, 32, 3), Convolution(4, 32, 32, 32, 3, groups=32)]
QUICK = [Convolution(1, 8, 8, 8, 3), Convolution(1, 8, 16, 64, 3, stride=2, dims=1)]


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every layer, both ways, in what it is trained in."""
    layers = QUICK if quick else [*DENSE, *OTHERS] if device.is_gpu else CPU
    dtypes = ("bf16", "tf32") if device.is_gpu else ("fp32",)
    for layer, dtype in product(layers, dtypes):
        for layout in ("first", "last") if layer.dims == 2 else ("first",):
            for way in ("forward", "backward"):
                yield _point(device, dtype, layout, way, layer)


def _point(device: Device, dtype: str, layout: str, way: str, layer: Convolution) -> Point:
    def measure(allowed_s: float) -> list[float]:
        return device.times(work(device, dtype, layout, way, layer), allowed_s)

    parameters = {"dtype": dtype, "layout": layout, "way": way}
    return device.point(parameters | layer._asdict(), measure)


def work(device: Device, dtype: str, layout: str, way: str, layer: Convolution) -> Work:
    """One call of a layer."""
    import torch

    form = torch.channels_last if layout == "last" else torch.contiguous_format

    def made(*shape: int) -> torch.Tensor:
        found = torch.randn(*shape, device=device.name, dtype=dtype_of(dtype))
        return found.contiguous(memory_format=form)

    dims, groups, kernel = layer.dims, layer.groups, (layer.kernel,) * layer.dims
    x = made(layer.batch, layer.channels_in, *(layer.side,) * dims)
    weight = made(layer.channels_out, layer.channels_in // groups, *kernel)
    stride, padding = (layer.stride,) * dims, (layer.padding,) * dims
    rest = (stride, padding, (1,) * dims, False, (0,) * dims, groups)

    def forward() -> torch.Tensor:
        return torch.ops.aten.convolution(x, weight, None, *rest)  # type: ignore[no-any-return]

    if way == "forward":
        return forward
    gradient = torch.randn_like(forward())
    return lambda: torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *rest, [True, True, False]
    )
