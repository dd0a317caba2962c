"""Where a Ray program is, for a person who waits for it.

Read from outside at any moment, also by another thread, and never by the run itself: what is shown
cannot change what happens.
"""

from __future__ import annotations

from typing import Any

from raysim.kernel.progress import Moment
from raysim.kernel.simulation import Simulation
from raysim.raycore.state_log import StateLog
from raysim.units import to_ns
from raysim.workloads.program import ProgramJob


class Watching:
    """Virtual time and counts of tasks, actors and nodes, from the rows that were written so far.

    ``end_ns`` is when the run ends, if that is known.
    """

    def __init__(self, simulation: Simulation, log: StateLog, end_ns: int | None = None) -> None:
        self._simulation = simulation
        self._log = log
        self._end_ns = end_ns
        self._read = 0
        self._attempts = self._started = self._ended = self._failed = 0
        self._actors: set[int] = set()
        self._nodes: set[int] = set()
        self._gone: set[int] = set()

    def __call__(self) -> Moment:
        """``40 of 96 tasks finished, 16 running, 2 actors on 4 nodes``."""
        self._catch_up()
        now_ns, end_ns = self._simulation.now_ns, self._end_ns
        if end_ns is not None and now_ns > end_ns:  # what was asked for last still takes its time
            end_ns = None
        share = None if end_ns is None else now_ns / end_ns
        return Moment(self._words(), share, now_ns, end_ns, self._simulation.log.events)

    def _catch_up(self) -> None:
        """Count what was written since; a busy run writes tens of thousands of rows a second."""
        new = self._log.rows[self._read :]
        self._read += len(new)
        states = [row[2] for row in new if row[0] == "task"]
        self._attempts += states.count("PENDING_ARGS_AVAIL")
        self._started += states.count("RUNNING")
        self._failed += states.count("FAILED")
        self._ended += states.count("FINISHED") + states.count("FAILED")
        for row in new:
            if row[0] == "actor":
                (self._actors.add if row[2] == "ALIVE" else self._actors.discard)(row[1])
            elif row[0] == "node" and row[2] != "RESOURCES":
                nodes = self._gone if row[2] == "DEAD" else self._nodes
                self._nodes.discard(row[1])
                nodes.add(row[1])

    def _words(self) -> str:
        running = max(0, self._started - self._ended)
        where = f" on {len(self._nodes):,} node{'s' * (len(self._nodes) != 1)}"
        actors = len(self._actors)
        alive = f", {actors:,} actor{'s' * (actors != 1)}" if actors else ""
        if not self._attempts:
            said = f"no tasks yet{alive}{where}"
        else:
            done = f"{self._ended:,} of {self._attempts:,} tasks finished"
            said = f"{done}, {running:,} running{alive}{where}"
        said += f"; {self._failed:,} attempts failed" if self._failed else ""
        return said + (f"; {len(self._gone):,} nodes gone" if self._gone else "")


def known_end_ns(job: ProgramJob) -> int | None:
    """When a program ends, if its scenario says so: ``until``, or how long requests come."""
    end_s, load = job.until_s, getattr(job.library, "load", None)
    if end_s is None and load is not None:
        end_s = _lasting_s(load)
    return None if end_s is None else to_ns(end_s)


def _lasting_s(load: Any) -> float | None:
    """Of Serve's load, or of an LLM's that comes at a rate."""
    if hasattr(load, "duration_s"):
        return float(load.duration_s)
    return load.requests / load.rate_per_s if load.rate_per_s else None
