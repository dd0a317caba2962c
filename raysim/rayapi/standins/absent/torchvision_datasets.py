"""``torchvision.datasets``: black pictures of published sizes; folders of this machine are read.

Real counterpart: ``torchvision/datasets``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from raysim.rayapi.standins import vision
from raysim.rayapi.standins.published import pictures

__version__ = "0.28.0"
_TAIL = ("transform", "target_transform", "download")
_ARGUMENTS = {
    "train": ("root", "train", *_TAIL), "split": ("root", "split", *_TAIL),
    "image_set": ("root", "year", "image_set", "download", "transform", "target_transform"),
    "annFile": ("root", "annFile", "transform", "target_transform", "transforms"),
    "folder": ("root", "transform", "target_transform", "loader"), "all": ("root", *_TAIL),
}  # fmt: skip
"""Of each class, in order, by what says which split it is."""
_PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")


class VisionDataset(Dataset[Any]):
    """``torchvision.datasets.VisionDataset``."""

    raysim_by = ""

    def __init__(
        self, root: Any = "", transforms: Any = None, transform: Any = None,
        target_transform: Any = None,
    ) -> None:  # fmt: skip
        said = {"transforms": transforms, "transform": transform}
        vision.prepare(self, {"root": root, "target_transform": target_transform, **said})


class _Published(VisionDataset):
    """Of which nothing is here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        said = {**dict(zip(_ARGUMENTS[self.raysim_by], args, strict=False)), **kwargs}
        known = vision.known_as(type(self).__mro__, said)
        assert known is not None, "each of these classes is in the table"
        vision.stand_in(self, known, said)


class DatasetFolder(VisionDataset):
    """``torchvision.datasets.DatasetFolder``, of pictures."""

    raysim_by = "folder"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        said = {**dict(zip(_ARGUMENTS["folder"], args, strict=False)), **kwargs}
        folder = Path(str(said["root"]))
        if not folder.is_dir():
            known = vision.known_as(type(self).__mro__, said)
            assert known is not None, "this class is in the table"
            vision.stand_in(self, known, said)
            return
        vision.prepare(self, said)
        self.loader = said.get("loader") or _opened
        self.classes = sorted(f.name for f in folder.iterdir() if f.is_dir())
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
        self.samples: Any = [
            (str(file), i)
            for i, name in enumerate(self.classes)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in _PICTURES
        ]
        self.imgs, self.targets = self.samples, [target for _, target in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        path, target = self.samples[index]
        both = vars(self)["transforms"]
        picture = self.loader(path)
        return (picture, target) if both is None else both(picture, target)


class ImageFolder(DatasetFolder):
    """``torchvision.datasets.ImageFolder``."""


class FakeData(VisionDataset):
    """``torchvision.datasets.FakeData``."""

    def __init__(
        self, size: int = 1000, image_size: tuple[int, ...] = (3, 224, 224), num_classes: int = 10,
        transform: Any = None, target_transform: Any = None, random_offset: int = 0,
    ) -> None:  # fmt: skip
        super().__init__("", None, transform, target_transform)
        self.size, self.image_size, self.num_classes = size, image_size, num_classes
        self.random_offset = random_offset

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= int(index) < self.size:
            raise IndexError(index)
        _, height, width = self.image_size
        picture = vision.black("RGB", (width, height))
        target = torch.tensor(int(index) % self.num_classes)
        both = vars(self)["transforms"]
        return (picture, target) if both is None else both(picture, target)


def _opened(path: str) -> Any:
    from PIL import Image

    with open(path, "rb") as file:  # noqa: PTH123  (as torchvision does)
        return Image.open(file).convert("RGB")


def _classes() -> dict[str, type]:
    made: dict[str, type] = {}
    for key, known in pictures().items():
        name = key.partition("/")[0]
        if known.by != "folder":
            own = {"raysim_by": known.by, "__module__": "torchvision.datasets"}
            made[name] = type(name, (_Published,), own)
    return made


globals().update(_classes())
