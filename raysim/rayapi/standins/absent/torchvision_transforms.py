"""``torchvision.transforms``: sizes and types of pictures; what only changes colours does nothing.

Real counterpart: ``torchvision/transforms`` and ``v2``.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as of_tensors

__version__ = "0.28.0"
functional = sys.modules[__name__]
"""``transforms.functional`` is this module too."""


class InterpolationMode(enum.Enum):
    """How pixels between pixels are made."""

    NEAREST, BILINEAR, BICUBIC, LANCZOS = "nearest", "bilinear", "bicubic", "lanczos"
    BOX, HAMMING, NEAREST_EXACT = "box", "hamming", "nearest-exact"


def _size(picture: Any) -> tuple[int, int]:
    """Height, width."""
    if isinstance(picture, torch.Tensor):
        return int(picture.shape[-2]), int(picture.shape[-1])
    return picture.height, picture.width


def get_dimensions(picture: Any) -> list[int]:
    """Channels, height, width."""
    channels = picture.shape[-3] if isinstance(picture, torch.Tensor) else len(picture.getbands())
    return [int(channels), *_size(picture)]


def get_image_size(picture: Any) -> list[int]:
    """Width, height."""
    return list(_size(picture)[::-1])


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[-1]))


def resize(picture: Any, size: Any, *_: Any, max_size: int | None = None, **__: Any) -> Any:
    """Of a number: its shorter side."""
    height, width = _size(picture)
    if isinstance(size, int) or len(size) == 1:
        side = size if isinstance(size, int) else size[0]
        factor = side / min(height, width)
        if max_size is not None:
            factor = min(factor, max_size / max(height, width))
        wanted = round(height * factor), round(width * factor)
    else:
        wanted = _pair(size)
    if isinstance(picture, torch.Tensor):
        four = picture if picture.dim() == 4 else picture[None]
        out = of_tensors.interpolate(four.float(), wanted).to(picture.dtype)
        return out if picture.dim() == 4 else out[0]
    return picture.resize((wanted[1], wanted[0]))


def crop(picture: Any, top: int, left: int, height: int, width: int) -> Any:
    """A part; black where there is none."""
    if isinstance(picture, torch.Tensor):
        part = picture[..., top : top + height, left : left + width]
        low, right = height - part.shape[-2], width - part.shape[-1]
        return of_tensors.pad(part, (0, right, 0, low)) if low or right else part
    return picture.crop((left, top, left + width, top + height))


def resized_crop(
    picture: Any, top: int, left: int, height: int, width: int, size: Any, *_: Any, **__: Any
) -> Any:
    """A part, as large as ``size``."""
    return resize(crop(picture, top, left, height, width), size)


def center_crop(picture: Any, size: Any) -> Any:
    """The middle."""
    (height, width), (have_h, have_w) = _pair(size), _size(picture)
    return crop(
        picture, max(0, (have_h - height) // 2), max(0, (have_w - width) // 2), height, width
    )


def pad(picture: Any, padding: Any, fill: Any = 0, *_: Any) -> Any:
    """With a border."""
    sides = [padding] * 4 if isinstance(padding, int) else list(padding) * (4 // len(padding))
    left, top, right, low = sides
    if isinstance(picture, torch.Tensor):
        return of_tensors.pad(picture, (left, right, top, low), value=fill)
    height, width = _size(picture)
    return picture.crop((-left, -top, width + right, height + low))


def pil_to_tensor(picture: Any) -> Any:
    """(channels, height, width), in 8 bits."""
    if isinstance(picture, torch.Tensor):
        return picture
    array = np.array(picture)
    found = torch.from_numpy(array[:, :, None] if array.ndim == 2 else array)
    return found.permute(2, 0, 1).contiguous()


def to_tensor(picture: Any) -> Any:
    """(channels, height, width), from 0 to 1."""
    found = pil_to_tensor(picture)
    return found.to(torch.get_default_dtype()).div(255) if found.dtype == torch.uint8 else found


def normalize(tensor: Any, mean: Sequence[float], std: Sequence[float], *_: Any, **__: Any) -> Any:
    """Around 0."""
    middle = torch.as_tensor(mean, dtype=tensor.dtype, device=tensor.device).view(-1, 1, 1)
    spread = torch.as_tensor(std, dtype=tensor.dtype, device=tensor.device).view(-1, 1, 1)
    return tensor.sub(middle).div(spread)


def to_pil_image(picture: Any, *_: Any) -> Any:
    """Of a tensor or an array."""
    from PIL import Image

    shape = tuple(picture.shape)
    grey = len(shape) == 2 or 1 in (shape[0], shape[-1])
    height, width = shape[-2:] if isinstance(picture, torch.Tensor) else shape[:2]
    return Image.new("L" if grey else "RGB", (width, height))


class Compose:
    """One after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, *given: Any) -> Any:
        """Of a picture, or of several things that ``v2`` takes."""
        picture, *rest = given
        for each in self.transforms:
            picture = each(picture)
        return (picture, *rest) if rest else picture


class _Made(torch.nn.Module):
    """Made by a function of this module."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__()
        self._function, self._args = function, args

    def __call__(self, *given: Any) -> Any:
        """Of a picture; others go through."""
        out = self._function(given[0], *self._args)
        return (out, *given[1:]) if len(given) > 1 else out


class Resize(_Made):
    """``Resize``."""

    def __init__(self, size: Any, interpolation: Any = None, max_size: Any = None, *_: Any,
                 **__: Any) -> None:  # fmt: skip
        super().__init__(lambda p: resize(p, size, max_size=max_size))
        self.size, self.interpolation = size, interpolation


class CenterCrop(_Made):
    """``CenterCrop``."""

    def __init__(self, size: Any) -> None:
        super().__init__(center_crop, size)
        self.size = size


class RandomCrop(_Made):
    """``RandomCrop``: the middle."""

    def __init__(self, size: Any, padding: Any = None, *_: Any, **__: Any) -> None:
        super().__init__(lambda p: center_crop(pad(p, padding) if padding else p, size))
        self.size = size


class RandomResizedCrop(_Made):
    """``RandomResizedCrop``: the whole."""

    def __init__(self, size: Any, *_: Any, **__: Any) -> None:
        super().__init__(resize, _pair(size))
        self.size = size


class Pad(_Made):
    """``Pad``."""

    def __init__(self, padding: Any, fill: Any = 0, *_: Any) -> None:
        super().__init__(pad, padding, fill)


class ToTensor(_Made):
    """``ToTensor``."""

    def __init__(self) -> None:
        super().__init__(to_tensor)


class PILToTensor(_Made):
    """``PILToTensor``, ``ToImage``."""

    def __init__(self) -> None:
        super().__init__(pil_to_tensor)


ToImage = PILToTensor


class ToPILImage(_Made):
    """``ToPILImage``."""

    def __init__(self, *_: Any) -> None:
        super().__init__(to_pil_image)


class Normalize(_Made):
    """``Normalize``."""

    def __init__(self, mean: Any, std: Any, *_: Any, **__: Any) -> None:
        super().__init__(normalize, mean, std)
        self.mean, self.std = mean, std


class ConvertImageDtype(_Made):
    """``ConvertImageDtype``, ``ToDtype``."""

    def __init__(self, dtype: Any = torch.float32, *_: Any, **__: Any) -> None:
        super().__init__(lambda p: pil_to_tensor(p).to(dtype))


ToDtype = ConvertImageDtype


class Lambda(_Made):
    """``Lambda``."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        super().__init__(lambd)


class Grayscale(_Made):
    """``Grayscale``."""

    def __init__(self, num_output_channels: int = 1) -> None:
        super().__init__(_grey, num_output_channels)


def _grey(picture: Any, channels: int) -> Any:
    if isinstance(picture, torch.Tensor):
        return picture[..., :1, :, :].expand(*picture.shape[:-3], channels, *picture.shape[-2:])
    return picture.convert("L" if channels == 1 else "RGB")


class RandomApply(_Made):
    """``RandomApply``: always."""

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        super().__init__(Compose(list(transforms)))
        self.transforms, self.p = transforms, p


class RandomChoice(_Made):
    """``RandomChoice``: the first."""

    def __init__(self, transforms: Sequence[Any], *_: Any) -> None:
        super().__init__(transforms[0])


class _Same(_Made):
    """What changes neither size nor type."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(lambda p: p)


def _colours(name: str) -> type:
    return type(name, (_Same,), {"__doc__": f"``{name}``: as it is."})


_KEEP = (
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "RandAugment",
    "RandomAdjustSharpness", "RandomAffine", "RandomAutocontrast", "RandomEqualize",
    "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert",
    "RandomPerspective", "RandomPhotometricDistort", "RandomPosterize", "RandomRotation",
    "RandomSolarize", "RandomVerticalFlip", "SanitizeBoundingBoxes", "ToPureTensor",
    "TrivialAugmentWide",
)  # fmt: skip
globals().update({name: _colours(name) for name in _KEEP})


def hflip(picture: Any, *_: Any, **__: Any) -> Any:
    """``functional``'s that change neither size nor type."""
    return picture


adjust_brightness = adjust_contrast = adjust_gamma = adjust_hue = adjust_saturation = hflip
gaussian_blur = rotate = solarize = vflip = hflip
