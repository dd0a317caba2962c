"""What holds a Ray program up, in one sentence with its numbers.

The run's time is divided by ``results.ray.activity``; the largest part is what binds. What moves
data is looked at beside it, since copies overlap with tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysim.results.ray.activity import PARTS, Activity
from raysim.units import NS_PER_S, format_bytes, format_seconds

_WORTH_SAYING = 0.25
"""Share of the largest part from which the second is named too."""
_SATURATED = 0.5
"""Share of its capacity from which a port or disk is named."""

Rows = Sequence[Mapping[str, Any]]


def parts(activity: Activity, meanwhile: str = "") -> list[dict[str, Any]]:
    """The ``time`` part of the summary: it adds up to the run; longest first.

    ``meanwhile`` is what goes on while no task runs, where that is not the driver's own code.
    """
    total = activity.end_ns
    names = {**PARTS, "own": meanwhile or PARTS["own"]}
    rows = [
        {"key": key, "name": names[key], "seconds": ns / NS_PER_S, "frac": ns / total}
        for key, ns in activity.parts_ns.items()
        if total and ns >= 1
    ]
    return sorted(rows, key=lambda row: -row["frac"])


def no_room(groups: int, sentences: Sequence[str]) -> dict[str, Any] | None:
    """Of a program that hangs: placement groups that will never have room."""
    return {"what": "infeasible", "text": sentences[0], "frac": None} if groups else None


def bound_by(
    share: Rows,
    usage: Rows,
    network: Mapping[str, Any],
    store: Mapping[str, Any],
    tasks: Mapping[str, Any],
) -> dict[str, Any]:
    """The ``bound_by`` part of the summary."""
    if not share:
        return {"what": "nothing", "text": "Nothing has happened.", "frac": 0.0}
    facts = _Facts(usage, network, store, tasks)
    top = share[0]
    text = f"{facts.sentence(top)} ({top['frac'] * 100:.0f} % of the run)"
    if len(share) > 1 and share[1]["frac"] > _WORTH_SAYING * top["frac"]:
        second = share[1]
        text += f"; then {facts.sentence(second, first=False)} ({second['frac'] * 100:.0f} %)"
    text += facts.moving()
    return {"what": top["key"], "text": f"{text}.", "frac": top["frac"]}


class _Facts:
    """Numbers that the sentences need."""

    def __init__(
        self,
        usage: Rows,
        network: Mapping[str, Any],
        store: Mapping[str, Any],
        tasks: Mapping[str, Any],
    ) -> None:
        self.usage = usage
        self.network = network
        self.store = store
        self.tasks = tasks

    def sentence(self, part: Mapping[str, Any], *, first: bool = True) -> str:
        """One part."""
        make = getattr(self, f"_{part['key']}", None)
        said: str = make(part) if make is not None else PARTS[part["key"]]
        return said[0].upper() + said[1:] if first else said

    def _fullest(self) -> tuple[str, str, float]:
        """Group, resource and share of what is held most."""
        found = [
            (resource["frac"], row["group"], name)
            for row in self.usage
            for name, resource in row["resources"].items()
        ]
        frac, group, name = max(found, default=(0.0, "the cluster", "CPU"))
        return group, name, frac

    def _mean_task(self) -> str:
        rows = [r for r in self.tasks["by_function"] if r["mean_seconds"]]
        if not rows:
            return ""
        longest = max(rows, key=lambda r: r["busy_seconds"])
        return f"{longest['name']}, {format_seconds(longest['mean_seconds'])} each"

    def _full(self, _part: Mapping[str, Any]) -> str:
        group, name, frac = self._fullest()
        return f"{name}s of {group}: tasks wait for them, {frac * 100:.0f} % are held on average"

    def _tasks(self, _part: Mapping[str, Any]) -> str:
        _, name, frac = self._fullest()
        most = self._mean_task()
        of = f" ({most})" if most else ""
        return f"the tasks' own time{of}: nothing waits, {frac * 100:.0f} % of {name}s are held"

    def _dependencies(self, _part: Mapping[str, Any]) -> str:
        most = self._mean_task()
        of = f" ({most})" if most else ""
        return f"tasks that others depend on{of}; free resources do not help"

    def _driver(self, _part: Mapping[str, Any]) -> str:
        n = self.tasks["total"]
        _, name, frac = self._fullest()
        return (
            f"the driver's thread, which submits {n:,} tasks while {frac * 100:.0f} % of {name}s"
            " are held"
        )

    def _cold(self, part: Mapping[str, Any]) -> str:
        return f"cold starts of worker processes, {format_seconds(part['seconds'])}"

    def _fetch(self, _part: Mapping[str, Any]) -> str:
        moved, restored = self.network["bytes"], self.store["restored_bytes"]
        also = f" and {format_bytes(restored)} restored from disk" if restored else ""
        return f"fetching arguments: {format_bytes(moved)} moved between nodes{also}"

    def _actors(self, _part: Mapping[str, Any]) -> str:
        most = self._mean_task()
        return f"busy actors, whose calls wait in line{f' ({most})' if most else ''}"

    def _own(self, part: Mapping[str, Any]) -> str:
        return f"{part['name']}, {format_seconds(part['seconds'])}"

    def _to_come(self, part: Mapping[str, Any]) -> str:
        return f"no driver: pods start or jobs are to come, {format_seconds(part['seconds'])}"

    def _startup(self, part: Mapping[str, Any]) -> str:
        return f"starting Ray, {format_seconds(part['seconds'])}"

    def _failure(self, part: Mapping[str, Any]) -> str:
        return f"a failure nobody has noticed yet, {format_seconds(part['seconds'])}"

    def _infeasible(self, part: Mapping[str, Any]) -> str:
        return f"resources that no node has, {format_seconds(part['seconds'])}"

    def moving(self) -> str:
        """A port or a disk that is near its limit, and what was spilled."""
        text = ""
        port = self.network["busiest_port"]
        if port["frac"] > _SATURATED:
            text += (
                f"; {port['node']}'s network port carried {port['frac'] * 100:.0f} % of what it"
                f" can ({port['direction']}, {format_bytes(port['bytes'])})"
            )
        if self.store["disk_busy_frac"] > _SATURATED:
            share = self.store["disk_busy_frac"] * 100
            text += f"; {self.store['disk_node']}'s disk was busy {share:.0f} % of the time"
        if self.store["spilled_bytes"]:
            text += f"; {format_bytes(self.store['spilled_bytes'])} spilled"
        return text
