"""Defaults: which were taken, and a copy of the scenario with all of them written out."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from raysim.errors import Problem
from raysim.scenario.documents import Document, KeyPath, dotted
from raysim.scenario.schema import ScenarioSection, sections_in
from raysim.scenario.sources import Source


def defaults_taken(spec: BaseModel, document: Document) -> Iterator[Problem]:
    """One note per key that was left out and has a value all the same."""
    for path, value in _defaults(type(spec), document.data, ()):
        yield Problem(key=dotted(path), message=f"default {_shown(value)}")


def with_defaults(model: type[BaseModel], data: Any) -> Any:
    """``data`` with the defaults of every section it has, and of those it may leave out."""
    if not isinstance(data, dict):
        return data
    filled = dict(data)
    for name, info in model.model_fields.items():
        key = info.alias or name
        inner = next(sections_in(info.annotation), None)
        mapped = typing.get_origin(info.annotation) is dict
        if key in data:
            if inner is not None and isinstance(data[key], dict):
                if mapped:
                    filled[key] = {k: with_defaults(inner, v) for k, v in data[key].items()}
                else:
                    filled[key] = with_defaults(inner, data[key])
            elif inner is not None and isinstance(data[key], list):
                filled[key] = [with_defaults(inner, item) for item in data[key]]
        else:
            value = _default(info, inner)
            if value is not None:
                filled[key] = value
    return filled


def written_out(
    model: type[BaseModel],
    document: Document,
    sources: Mapping[KeyPath, Source],
    files: Mapping[str, str],
) -> dict[str, Any]:
    """A scenario as plain data that replays it: user files inline, defaults filled."""
    from raysim import __version__

    data = copy.deepcopy(document.data)
    for slot, source in sources.items():
        parent = data
        for step in slot[:-1]:
            parent = parent[step]
        parent[slot[-1]] = copy.deepcopy(source.content)
    filled: dict[str, Any] = with_defaults(model, data)
    filled["resolved"] = {"raysim": __version__, "files": dict(files)}
    return filled


def _default(info: Any, inner: type[BaseModel] | None) -> Any:
    """A field's default as plain data; None when it has none or is empty."""
    if info.default_factory is not None:
        return with_defaults(inner, {}) if inner is not None and info.annotation is inner else None
    if info.default is PydanticUndefined or info.default in (None, ""):
        return None
    return info.default


def _defaults(model: type[BaseModel], data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Paths of left-out keys with their defaults, section by section."""
    if not isinstance(data, dict):
        return
    for name, info in model.model_fields.items():
        key = info.alias or name
        inner = next(sections_in(info.annotation), None)
        here = (*path, key)
        if key not in data:
            value = _default(info, inner)
            if isinstance(value, dict) and inner is not None:
                yield from _defaults(inner, {}, here)
            elif value is not None:
                yield here, value
        elif inner is not None and typing.get_origin(info.annotation) is not dict:
            items = data[key] if isinstance(data[key], list) else None
            if items is None:
                yield from _defaults(inner, data[key], here)
            else:
                for i, item in enumerate(items):
                    yield from _defaults(inner, item, (*here, i))


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def not_simulated(spec: ScenarioSection, document: Document) -> Iterator[Problem]:
    """What the scenario says and this version does not simulate."""
    if spec.faults is not None:
        message = "not simulated; say what to expect in `failures` and `noise` of the train section"
        yield document.problem(("faults",), message, key=True)
    if spec.vary:
        yield document.problem(("vary",), "used by plan; ignored by run", key=True)
    data: KeyPath = ("jobs", 0, "train", "data")
    for key in ("read_from", "bytes_per_token"):
        if getattr(spec.train.data, key) is not None:
            message = "reading from storage is not simulated yet"
            yield document.problem((*data, key), message, key=True)
