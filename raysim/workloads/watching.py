"""Where a Ray program is, in one line, for a person who waits for it.

Read from outside at any moment, also by another thread, and never by the run itself: what is shown
cannot change what happens.
"""

from __future__ import annotations

from raysim.kernel.simulation import Simulation
from raysim.raycore.state_log import StateLog
from raysim.units import NS_PER_S, format_seconds


class Watching:
    """Virtual time and counts of tasks, from the rows that were written so far."""

    def __init__(self, simulation: Simulation, log: StateLog) -> None:
        self._simulation = simulation
        self._log = log
        self._read = 0
        self._attempts = self._running = self._ended = 0

    def __call__(self) -> str:
        """``1.20 min virtual, 40 of 96 task attempts ended, 16 running``."""
        rows = self._log.rows
        for row in rows[self._read :]:
            self._read += 1
            if row.kind == "task":
                self._attempts += row.state == "PENDING_ARGS_AVAIL"
                self._running += row.state == "RUNNING"
                self._ended += row.state in ("FINISHED", "FAILED")
        now = format_seconds(self._simulation.now_ns / NS_PER_S)
        tasks = f"{self._ended:,} of {self._attempts:,} task attempts ended"
        return f"{now} virtual, {tasks}, {max(0, self._running - self._ended):,} running"
