"""A job of one of Ray's libraries as its spec of ``workloads``, with the files it points to read.

Each library has a schema, a reader and one row of ``LIBRARIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.scenario.data import read_data
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.exoshuffle import read_exoshuffle
from raysim.scenario.llm import read_llm
from raysim.scenario.rl import read_rl
from raysim.scenario.schema_program import ProgramJobSection
from raysim.scenario.serve import read_serve
from raysim.scenario.trainer import read_trainer
from raysim.scenario.tune import read_tune
from raysim.workloads.library import LibraryJob

Reader = Callable[[Any, KeyPath, Path, Document, dict[KeyPath, Path]], LibraryJob]
"""Of a section: with where it stands, the scenario's folder, its document, and where to note files
it takes.

Raises ScenarioError, one problem each."""

LIBRARIES: dict[str, Reader] = {
    "trainer": read_trainer, "tune": read_tune, "rl": read_rl, "llm": read_llm,
    "data": read_data, "serve": read_serve, "exoshuffle": read_exoshuffle,
}  # fmt: skip
"""By the key under ``jobs``."""


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
    return LIBRARIES[key](getattr(said, key), (*at, key), folder, document, inputs)
