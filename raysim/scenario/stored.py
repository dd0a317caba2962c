"""``files`` of a scenario: what scripts read that is not here (``raylibs.data.stored``)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from raysim.errors import Problem, ScenarioError
from raysim.hardware import catalog
from raysim.raylibs.data.stored import StoredFiles
from raysim.scenario.data import source_of
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_data import FilesSection

_TYPE = re.compile(r"(?P<name>[a-z]+[0-9]*)(\[(?P<shape>[0-9]+(, ?[0-9]+)*)\])?")


def stored_files(
    said: Sequence[FilesSection], document: Document, problems: list[Problem]
) -> tuple[StoredFiles, ...]:
    """All of them; what is wrong is added to ``problems``."""
    found = []
    for index, each in enumerate(said):
        at: KeyPath = ("files", index)
        bucket = None
        try:
            bucket = None if each.bucket is None else catalog.object_storage(each.bucket)
        except ScenarioError as error:
            problems.append(document.problem((*at, "bucket"), error.problems[0].message))
        columns = []
        for name, kind in each.columns.items():
            match = _TYPE.fullmatch(kind.strip())
            try:
                columns.append((name, np.dtype(match["name"]).name, _shape(match["shape"])))  # type: ignore[index]
            except TypeError:
                message = f"{kind!r} is no type of numpy: say int64, float32 or uint8[224,224,3]"
                problems.append(document.problem((*at, "columns", name), message))
        found.append(
            StoredFiles(
                at=each.at, source=source_of(each), columns=tuple(columns), bucket=bucket,
                connections=each.connections,
            )
        )  # fmt: skip
    return tuple(found)


def _shape(text: str | None) -> tuple[int, ...]:
    return () if text is None else tuple(int(n) for n in text.split(","))
