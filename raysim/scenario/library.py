"""A job of one of Ray's libraries as its spec of ``workloads``, with the files it points to read.

Each library has a schema, a reader and a name in ``LIBRARIES``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from raysim.scenario.documents import Document, KeyPath

if TYPE_CHECKING:
    from raysim.scenario.schema_program import ProgramJobSection
    from raysim.workloads.library import LibraryJob

LIBRARIES = ("trainer", "tune", "rl", "llm", "data", "serve", "exoshuffle")
"""Keys under ``jobs``. The reader of each is ``read_<key>`` of the module of that name, imported
when there is such a job: a training job needs none of Ray's libraries."""


def is_program(document: Document) -> bool:
    """Whether the document's job is a Ray program."""
    data = document.data
    jobs = data.get("jobs") if isinstance(data, dict) else None
    first = jobs[0] if isinstance(jobs, list) and jobs else None
    return isinstance(first, dict) and not {"script", "workload", "rayjob", *LIBRARIES}.isdisjoint(
        first
    )


def library_of(
    said: ProgramJobSection, at: KeyPath, folder: Path, document: Document,
    inputs: dict[KeyPath, Path],
) -> LibraryJob:  # fmt: skip
    """The spec of the library's job that was given ``at`` a key.

    Raises
    ------
    ScenarioError
        Numbers contradict each other, or a file is absent or wrong; one problem each.
    """
    key = said.library
    assert key is not None, "asked for a library's job where there is none"
    read = getattr(importlib.import_module(f"raysim.scenario.{key}"), f"read_{key}")
    return cast("LibraryJob", read(getattr(said, key), (*at, key), folder, document, inputs))
