"""torchvision's data sets whose files are not here: pictures of their sizes, targets of their kind.

Real counterpart: ``torchvision/datasets``. A data set whose files are on this machine is read; of
any other nothing is downloaded: it has as many rows and classes as published (``vision.csv``), and
its pictures are black. Transforms run on them as ever. A folder of pictures that is not there is
ImageNet where its path says so, else pictures and classes as many as is assumed there.

Not modelled: pictures that differ in size; what reading them from a disk and decoding takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.standins.published import Pictures, pictures
from raysim.rayapi.standins.said import program_here, say

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_MISSING = (RuntimeError, OSError, ImportError)
"""What torchvision raises where a file, or the package that reads it, is not there."""
_OBJECTS, _CAPTIONS, _ATTRIBUTES = 7, 5, 40
"""Of a picture of COCO (7.3 objects), of its captions, of CelebA."""
_GREY = frozenset(["MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST"])
_ROWS = frozenset(["CIFAR10", "CIFAR100", "USPS"])
"""Classes whose ``data`` is a tensor; an array with channels last; below, with channels first."""
_PLANES = frozenset(["SVHN", "STL10"])
_FOLDERS = frozenset(["DatasetFolder"])
"""What opens a path is ``loader``."""
SAID = (
    "{name}: its files are not on this machine; {rows:,} black pictures of {width} x {height} in "
    "{classes:,} classes stand for it ({source})"
)


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``torchvision.datasets``."""
    for name in {key.partition("/")[0] for key in pictures()}:
        kind = getattr(module, name, None)
        if kind is not None and "__init__" in vars(kind):
            r.around(kind, "__init__", _made, program_here)
    # Those without an ``__init__`` of their own are made by their parent's, which is among these.


def install_timm(r: Replaced, module: ModuleType) -> None:
    """Of ``timm.data.readers.reader_factory``, which reads folders of pictures itself."""
    r.around(module, "create_reader", _reader, program_here)


def _reader(real: Any, _who: Any, name: Any, root: Any = None, *args: Any, **kwargs: Any) -> Any:
    folder = Path(str(root))
    if name or root is None or folder.exists():
        return real(name, root, *args, **kwargs)
    found = Shown()
    found.transforms = None
    known = pictures()["ImageNet" if "imagenet" in str(root).lower() else "ImageFolder"]
    split = str(kwargs.get("split") or "")
    found.raysim_rows = known.rows("val" if split.startswith("val") else split)
    found.raysim_known = known
    return Read(found)


class Read:
    """A reader of timm's: files, as they are opened, and their classes."""

    def __init__(self, data: Shown) -> None:
        known = data.raysim_known
        self._data, self.class_to_idx = data, {f"{i:05}": i for i in range(known.classes)}
        _say("a folder for timm", len(data), known)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        picture, target = self._data[index]
        file = BytesIO()
        picture.save(file, "png")
        file.seek(0)
        return file, target

    def filename(self, index: int, *_: Any, **__: Any) -> str:
        """Of a picture."""
        return f"{index:08}.png"


def _made(real: Any, _who: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(self, "raysim_begun", False):  # a parent's, on behalf of its child
        real(self, *args, **kwargs)
        return
    asked = inspect.signature(real).bind(self, *args, **kwargs)
    offline = {**asked.arguments, **asked.arguments.pop("kwargs", {})}
    offline.pop("self", None)
    if "download" in inspect.signature(real).parameters:
        offline["download"] = False
    rest = offline.pop("args", ())
    self.raysim_begun = True
    try:
        real(self, *rest, **offline)
    except _MISSING:
        known = known_as(type(self).__mro__, offline)
        here = Path(str(offline.get("root", ""))).is_dir()
        if known is None or (here and known.by == "folder"):
            raise
        stand_in(self, known, offline)
    finally:
        del self.raysim_begun


def known_as(kinds: Sequence[type], said: Mapping[str, Any]) -> Pictures | None:
    """What is published of a data set of these classes."""
    table, root = pictures(), str(said.get("root", "")).lower()
    for kind in kinds:
        name = f"EMNIST/{said.get('split')}" if kind.__name__ == "EMNIST" else kind.__name__
        if name in table:
            folder = table[name].by == "folder"
            return table["ImageNet"] if folder and "imagenet" in root else table[name]
    return None


def stand_in(self: Any, known: Pictures, said: Mapping[str, Any]) -> None:
    """Make a data set of torchvision's classes answer without its files."""
    kind, split = type(self), _split(known, said)
    rows = known.rows(split)
    if not _has_contents(kind):
        shown = {name: vars(Shown)[name] for name in _SHOWN}  # as a base its layout would differ
        self.__class__ = type(kind.__name__, (kind,), {**shown, "__module__": kind.__module__})
    prepare(self, said)
    self.raysim_rows, self.raysim_known = rows, known
    for name, value in {**said, known.by: split}.items():
        if name not in ("root", "transform", "target_transform", "transforms", "loader"):
            vars(self).setdefault(name, value)
    names = getattr(kind, "classes", None)
    if not isinstance(names, list) or len(names) != known.classes:
        names = [f"{i:05}" for i in range(known.classes)]
        self.classes = names
    if not isinstance(getattr(kind, "class_to_idx", None), property):
        self.class_to_idx = {name: i for i, name in enumerate(names)}
    _contents(self, kind, known)
    _say(kind.__name__, rows, known)


def prepare(self: Any, said: Mapping[str, Any]) -> None:
    """``VisionDataset.__init__``."""
    self.root = str(said.get("root") or "")
    self.transform, self.target_transform = said.get("transform"), said.get("target_transform")
    both = said.get("transforms")
    # those that are set later (timm) count too: most classes look at them with every sample
    self.transforms = both if both is not None else partial(_each, self)


def _each(self: Any, picture: Any, target: Any) -> Any:
    if self.transform is not None:
        picture = self.transform(picture)
    return picture, target if self.target_transform is None else self.target_transform(target)


def _split(known: Pictures, said: Mapping[str, Any]) -> str:
    asked = said.get(known.by, True if known.by == "train" else "")
    if known.by == "train":
        return "train" if asked else "test"
    if known.by == "annFile":
        return "val" if "val" in str(asked) else "train"
    folder = Path(str(said.get("root", ""))).name.lower()
    if known.by != "folder" and not asked:
        asked = next((s for s in known.splits if s.startswith(folder[:3] or "-")), "")
    return str(asked)


def _has_contents(kind: type) -> bool:
    """Whether what ``_contents`` makes is all that its own ``__getitem__`` looks at."""
    names = {k.__name__ for k in kind.__mro__}
    return hasattr(kind, "__len__") and bool(names & (_GREY | _ROWS | _PLANES | _FOLDERS))


def _contents(self: Any, kind: type, known: Pictures) -> None:
    """``data`` and ``targets``, as each class calls them; of memory they take next to none."""
    import numpy as np
    import torch

    rows, (width, height) = self.raysim_rows, known.size
    names = {k.__name__ for k in kind.__mro__}
    zero = np.zeros((), np.uint8)
    targets: Any = [i % known.classes for i in range(rows)]
    if names & _GREY:
        self.data = torch.from_numpy(zero[None, None]).expand(rows, height, width)
        self.targets = torch.tensor(targets)
        return
    if names & _PLANES:
        self.data = np.broadcast_to(zero, (rows, 3, height, width))
        self.labels = np.array(targets)
        return
    if names & _ROWS:
        shape = (rows, height, width) if known.mode == "L" else (rows, height, width, 3)
        self.data = np.broadcast_to(zero, shape)
    if known.target == "class":
        self.targets = self._labels = targets
        self.samples = self.imgs = Samples(self.root, targets)
        self.loader = partial(black, known.mode, known.size)
    if known.by == "annFile":
        self.ids = range(rows)


def black(mode: str, size: tuple[int, int], _path: Any = None) -> Any:
    """A picture, of width and height."""
    from PIL import Image

    return Image.new(mode, size)


def _say(name: str, rows: int, known: Pictures) -> None:
    width, height = known.size
    say(
        SAID.format(
            name=name, rows=rows, width=width, height=height, classes=known.classes,
            source=known.source,
        )
    )  # fmt: skip


class Samples(Sequence[Any]):
    """``samples`` of a folder: a path and a class, made when they are looked at."""

    def __init__(self, root: str, targets: Sequence[int]) -> None:
        self._root, self._targets = root, targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        target = self._targets[index]
        return f"{self._root}/{target:05}/{range(len(self))[index]:08}.jpg", target


class Shown:
    """A data set of torchvision without its files."""

    raysim_rows: int
    raysim_known: Pictures
    transforms: Any

    def __len__(self) -> int:
        return self.raysim_rows

    def __getitem__(self, index: Any) -> Any:
        """A black picture and its target."""
        known, place = self.raysim_known, range(self.raysim_rows)[int(index)]
        picture = black(known.mode, known.size)
        target = _TARGETS[known.target](self, place)
        return (picture, target) if self.transforms is None else self.transforms(picture, target)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Dataset {type(self).__name__} ({len(self)} rows, stood for by raysim)"


_SHOWN = ("__getitem__", "__iter__", "__len__", "__repr__")


def _mask(data: Any, _place: int) -> Any:
    return black("L", data.raysim_known.size)


def _boxes(data: Any, place: int) -> Any:
    width, height = data.raysim_known.size
    box = [0.0, 0.0, width / 2, height / 2]
    return [
        {"id": place * _OBJECTS + i, "image_id": place, "category_id": 1 + i, "iscrowd": 0,
         "bbox": box, "area": box[2] * box[3], "segmentation": [[*box, box[2], 0.0]],
         "type": "Car", "truncated": 0.0, "occluded": 0, "alpha": 0.0}
        for i in range(_OBJECTS)
    ]  # fmt: skip


def _captions(_data: Any, _place: int) -> Any:
    return ["A man riding a wave on top of a surfboard."] * _CAPTIONS


def _attributes(data: Any, place: int) -> Any:
    import torch

    kinds = vars(data).get("target_type") or "attr"
    made = {
        "attr": torch.zeros(_ATTRIBUTES, dtype=torch.long), "identity": torch.tensor(place % 10177),
        "bbox": torch.zeros(4, dtype=torch.long), "landmarks": torch.zeros(10, dtype=torch.long),
    }  # fmt: skip
    asked = [kinds] if isinstance(kinds, str) else list(kinds)
    found = tuple(made[kind] for kind in asked if kind in made)
    return found[0] if len(found) == 1 else found or None


def _voc(data: Any, _place: int) -> Any:
    width, height = map(str, data.raysim_known.size)
    box = {"xmin": "1", "ymin": "1", "xmax": width, "ymax": height}
    things = [{"name": name, "difficult": "0", "bndbox": box} for name in ("person", "dog")]
    return {"annotation": {"size": {"width": width, "height": height, "depth": "3"},
                           "filename": "0.jpg", "object": things}}  # fmt: skip


_TARGETS: dict[str, Callable[[Any, int], Any]] = {
    "class": lambda data, place: place % data.raysim_known.classes, "mask": _mask, "boxes": _boxes,
    "captions": _captions, "attributes": _attributes, "voc": _voc,
}  # fmt: skip
