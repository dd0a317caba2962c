"""``load_dataset`` of a data set that is not on this machine.

Real counterpart: ``datasets/load.py``. Files that are here are read, and so is the hub's cache. Of
any other name nothing is downloaded: rows and columns are as published (``hub.csv``), or as
``files:`` of a scenario says; a name that neither knows ends the script with what to give.

Where ``datasets`` is installed a stand-in is a ``Dataset`` of its own, whose few rows are repeated
by an index as long as published; ``map`` and ``filter`` work on those rows once. Where it is not,
``rows.py`` is that package.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.data.described import described, how_to_describe
from raysim.rayapi.standins.columns import bank_rows, value
from raysim.rayapi.standins.published import Column, Table, tables
from raysim.rayapi.standins.said import asked_at, program_here, say

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

SAID = (
    "{name}: not on this machine; rows and columns as published stand for it ({rows}; {source}), "
    "texts are English of assumed lengths"
)
_BUILDERS = frozenset(
    ["json", "csv", "text", "parquet", "arrow", "imagefolder", "audiofolder", "generator", "pandas",
     "webdataset", "sql", "xml"]
)  # fmt: skip
"""Read files that the script names."""
_SLICE = re.compile(r"(?P<split>[\w.]+)(\[(?P<begin>-?\d*%?):(?P<end>-?\d*%?)\])?$")


_OF_HUB = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)")


def of_hub(data_files: Any) -> tuple[str, str] | None:
    """Name and configuration of ``{"train": "hf://datasets/OWNER/NAME/..."}``; None: no such."""
    found = _OF_HUB.search(str(data_files or ""))
    if found is None:
        return None
    name = found["name"]
    configs = [c for c in config_names(name) if c in str(data_files)]
    return name, configs[0] if configs else ""


def known_table(path: Any, config: Any) -> Table:
    """What stands for a data set.

    Raises
    ------
    FileNotFoundError
        Nothing says what it is.
    """
    found = tables().get(str(path).lower(), ())
    exact = [t for t in found if t.config == config]
    if exact or found:
        return (exact or list(found))[0]
    files = described(str(path))
    if files is None:
        raise FileNotFoundError(
            f"{asked_at()}: the data set {str(path)!r} is not on this machine, and raysim does not "
            f"know its rows and columns. Give {how_to_describe(path)}."
        )
    columns = tuple(
        Column(name, "array" if shape else _KINDS.get(kind, kind), shape)
        for name, kind, shape in files.columns or ()
    )
    return Table(str(path), "", {"train": files.source.rows or 1000}, columns, "files:")


_KINDS = {"int64": "int", "int32": "int", "float32": "float", "float64": "float"}


def asked_splits(table: Table, split: Any) -> dict[str, int]:
    """Rows by split, of what ``split=`` names: ``train[:10%]``, ``train+test``; None: of all."""
    if split is None:
        return dict(table.splits)
    return {str(split): sum(_rows(table, part) for part in str(split).split("+"))}


def _rows(table: Table, part: str) -> int:
    found = _SLICE.match(part.strip())
    name = found["split"] if found else part
    whole = table.splits.get(name)
    if whole is None:
        raise ValueError(f"Unknown split {name!r}. Should be one of {list(table.splits)}.")
    begin = _place(found["begin"] if found else "", whole, 0)
    end = _place(found["end"] if found else "", whole, whole)
    return max(end - begin, 0)


def _place(text: str | None, whole: int, default: int) -> int:
    if not text:
        return default
    place = whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)
    return max(0, min(whole, place + whole if place < 0 else place))


def bank(table: Table, rows: int) -> dict[str, list[Any]]:
    """The rows that stand for so many: values by column."""
    made = bank_rows(table, rows)
    return {
        c.name: [value(c, place, table.config) for place in range(made)]
        for c in table.columns
    }  # fmt: skip


def say_of(table: Table, path: Any, splits: dict[str, int]) -> None:
    """That it is none of the real rows."""
    rows = ", ".join(f"{name} {n:,}" for name, n in splits.items())
    say(SAID.format(name=path, rows=rows, source=table.source))


# ---- where the package is installed ----------------------------------------------------------


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``datasets`` and ``datasets.load``; a script's own ``datasets.py`` is left alone."""
    if not hasattr(module, "load_dataset"):
        return
    r.around(module, "load_dataset", _load, program_here)
    for name in ("get_dataset_config_names", "get_dataset_split_names"):
        if hasattr(module, name):
            r.around(module, name, _names if "config" in name else _parts, program_here)


def install_rows(r: Replaced, module: ModuleType) -> None:
    """Of ``datasets.arrow_dataset``."""
    r.around(module.Dataset, "map", _mapped, program_here)
    r.around(module.Dataset, "filter", _mapped, program_here)


def config_names(path: Any) -> list[str]:
    """Configurations of a known data set."""
    return [table.config for table in tables().get(str(path).lower(), ())]


def _names(real: Any, _who: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    return config_names(path) or real(path, *args, **kwargs)


def _parts(real: Any, _who: Any, path: Any, config: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not config_names(path):
        return real(path, config, *args, **kwargs)
    return list(known_table(path, config).splits)


def is_here(path: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the package reads it from this machine."""
    if path in _BUILDERS or kwargs.get("data_files") is not None or Path(str(path)).exists():
        return True
    from datasets import config

    cached = Path(config.HF_DATASETS_CACHE) / str(path).replace("/", "___").lower()
    return cached.is_dir() and any(cached.iterdir())


def _load(real: Any, _who: Any, path: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
    files = of_hub(kwargs.get("data_files"))
    if files is not None:
        path, name = files
    elif is_here(path, kwargs):
        return real(path, name, *args, **kwargs)
    table = known_table(path, name)
    splits = asked_splits(table, kwargs.get("split"))
    say_of(table, path, splits)
    from datasets import DatasetDict, IterableDatasetDict

    made = {split: _repeated(table, rows) for split, rows in splits.items()}
    if kwargs.get("streaming"):
        made = {split: rows.to_iterable_dataset() for split, rows in made.items()}
    if kwargs.get("split") is not None:
        return next(iter(made.values()))
    return (IterableDatasetDict if kwargs.get("streaming") else DatasetDict)(made)


def _features(table: Table, rows: dict[str, list[Any]]) -> Any:
    """As the hub's own file says: classes, pictures, sounds, translations."""
    import datasets

    found = datasets.Dataset.from_dict(
        {c.name: rows[c.name] for c in table.columns if c.kind not in _SPECIAL}
    ).features
    kinds: dict[str, Any] = {}
    for c in table.columns:
        if c.kind == "class":
            kinds[c.name] = datasets.ClassLabel(names=[str(i) for i in range(int(c.sizes[0]))])
        elif c.kind in ("image", "grey"):
            kinds[c.name] = datasets.Image()
        elif c.kind == "images":
            kinds[c.name] = [datasets.Image()]
        elif c.kind == "tags":
            kinds[c.name] = datasets.Sequence(
                datasets.ClassLabel(names=[str(i) for i in range(int(c.sizes[0]))])
            )
        else:
            kinds[c.name] = found[c.name]
    return datasets.Features(kinds)


_SPECIAL = frozenset(["class", "image", "grey", "images", "tags"])


def _repeated(table: Table, rows: int) -> Any:
    import datasets

    made = bank(table, rows)
    few = datasets.Dataset.from_dict(made, features=_features(table, made))
    return repeated(few, rows)


def repeated(few: Any, rows: int) -> Any:
    """So many of them, by an index."""
    import numpy as np

    made = few
    if rows != len(few) and len(few):
        made = few.select(np.arange(min(rows, MOST_ROWS)) % len(few), keep_in_memory=True)
    made.raysim_known = True  # passes may share batches (``shapes.alike``)
    return made


MOST_ROWS = 20_000_000
"""Of an index, in which a row takes 8 bytes: more are not told from so many."""


def _mapped(real: Any, _who: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    index = self._indices
    kwargs = {**kwargs, "num_proc": None}  # other processes of this machine know no virtual time
    if index is None or len(self) < 2 * len(self.data):
        return real(self, *args, **kwargs)
    few = type(self)(self.data, info=self.info.copy(), split=self.split)
    few.set_format(**self.format)
    alone = {"load_from_cache_file": False, "keep_in_memory": True}
    kwargs = {key: value for key, value in kwargs.items() if not key.startswith("cache_file")}
    out = real(few, *args, **{**kwargs, **alone})
    if out._indices is not None:  # noqa: SLF001  (as above)
        out = out.flatten_indices(keep_in_memory=True)
    return repeated(out, round(len(self) * len(out) / len(few)))
