"""Jobs of Ray's libraries as a scenario asks for them: a driver's script and its report.

Real counterpart: the user's script around ``ds.iter_batches()``, ``trainer.fit()``,
``serve.run()`` or ``tuner.fit()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, drive
from raysim.raylibs.report import LibraryReport, Unit


class LibraryJob(Protocol):
    """A frozen spec of what one library is to do."""

    @property
    def kind(self) -> str:
        """The scenario's key: ``data``, ``serve``, ``tune``, ``rl``."""

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """Names of ``LibraryReport.metrics`` that targets may limit, and their units."""

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver: returns a ``LibraryReport``, or the ``TaskError`` it ended with."""


def start_library(
    job: LibraryJob,
    process: CoreProcess,
    streams: Streams,
    then: Callable[[LibraryReport | Any], object],
) -> None:
    """Start it in a driver; ``then`` with its report, or a TaskError."""
    drive(process, lambda p: job.main(p, streams), then)
