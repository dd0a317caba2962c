"""Several jobs on one cluster: when each waits and runs, and what share of the bill is whose.

A node's price is shared by what jobs hold of its GPUs, of a node without any of its CPUs; what
nobody holds is idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from raysim.raycore.protocol import LeaseSpec, NodeTableData
from raysim.raycore.resources import UNIT
from raysim.raycore.state_log import Change
from raysim.raylibs.charts import Bar, Chart
from raysim.raystate.moment import in_order
from raysim.report.program.figures import Figure, figure
from raysim.results.ray.recorded import Recorded
from raysim.units import NS_PER_S


class Share(NamedTuple):
    """One job's part."""

    name: str
    resource_hours: float
    """Of its nodes' GPUs, or CPUs."""
    frac: float
    """Of all node-hours, in money where prices are known."""
    usd: float | None


def bars(summary: Mapping[str, Any], end_s: float) -> Figure | None:
    """From submission to work, and to the end; None: one driver."""
    found: list[Bar] = []
    for row in summary.get("jobs") or []:
        ended_s = row["ended_seconds"] if row["ended_seconds"] is not None else end_s
        submitted_s = row["submitted_seconds"]
        if submitted_s is None or submitted_s > end_s:
            continue
        waited_s = row["wait_seconds"]
        begun_s = ended_s if waited_s is None else min(ended_s, submitted_s + waited_s)
        tries = f"{row['attempts']} attempts" if row["attempts"] > 1 else ""
        found.append(Bar(row=row["name"], from_s=submitted_s, to_s=begun_s, state="waits"))
        if ended_s > begun_s:
            state = "runs, succeeds" if row["status"] == "SUCCEEDED" else "runs, does not succeed"
            found.append(
                Bar(row=row["name"], from_s=begun_s, to_s=ended_s, state=state, text=tries)
            )
    chart = Chart(
        key="jobs-bars", title="Jobs over time", bars=tuple(found),
        about="Waits from submission to the first moment a task or actor of the job ran.",
    )  # fmt: skip
    return figure(chart, end_s) if found else None


def shares(recorded: Recorded, summary: Mapping[str, Any]) -> list[Share]:
    """What each job held; [] unless there are several."""
    if len(summary.get("jobs") or []) < 2:
        return []
    prices = {g["name"]: g["usd_per_hour"] for g in summary["cluster"]["groups"]}
    nodes = _nodes(recorded)
    held = _held(recorded)
    known = all(prices.get(group) is not None for group, _, _ in nodes.values())
    per_node_s = {i: price_of(prices, group, known=known) for i, (group, _, _) in nodes.items()}
    names = {i: row["name"] for row in summary["jobs"] for i in row["job_ids"]}
    of_job: dict[str, list[float]] = {row["name"]: [0.0, 0.0] for row in summary["jobs"]}
    for (job_id, node_id, name), unit_s in held.items():
        _, totals, _ = nodes.get(node_id, ("", {}, 0.0))
        main = "GPU" if totals.get("GPU") else "CPU"
        if name == main and totals.get(main) and job_id in names:
            of_job[names[job_id]][0] += unit_s / UNIT / 3600
            of_job[names[job_id]][1] += unit_s / totals[main] * per_node_s[node_id]
    whole = sum(up_s * per_node_s[i] for i, (_, _, up_s) in nodes.items())
    usd = summary["cost"]["usd"]
    rows = [
        Share(name, hours, part / whole if whole else 0.0,
              None if usd is None or not whole else usd * part / whole)
        for name, (hours, part) in of_job.items()
    ]  # fmt: skip
    idle = max(0.0, 1.0 - sum(r.frac for r in rows))
    return [*rows, Share("nobody: idle", 0.0, idle, None if usd is None else usd * idle)]


def price_of(prices: Mapping[str, Any], group: str, *, known: bool) -> float:
    """Of a node-second; every node is worth the same where a price is missing."""
    return float(prices[group]) / 3600 if known else 1.0


def _nodes(recorded: Recorded) -> dict[int, tuple[str, dict[str, float], float]]:
    """Group, totals in units, seconds up."""
    found: dict[int, tuple[str, dict[str, float], float]] = {}
    since: dict[int, int] = {}
    for row in recorded.rows:
        if row.kind != "node":
            continue
        if row.state == "ALIVE" and isinstance(row.detail, NodeTableData):
            before = found.get(row.number, ("", {}, 0.0))[2]
            totals = {k: float(v) for k, v in row.detail.resources.items()}
            found[row.number] = (row.detail.node_type, totals, before)
            since.setdefault(row.number, row.t_ns)
        elif row.state == "DEAD" and row.number in since:
            group, totals, up_s = found[row.number]
            up_s += (row.t_ns - since.pop(row.number)) / NS_PER_S
            found[row.number] = (group, totals, up_s)
    for number, begun_ns in since.items():
        group, totals, up_s = found[number]
        found[number] = (group, totals, up_s + (recorded.end_ns - begun_ns) / NS_PER_S)
    return found


class _Leases:
    """Which leases hold resources now, and what each job's have held."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int, str], float] = defaultdict(float)
        """(Job, node, CPU or GPU): unit-seconds."""
        self._specs: dict[int, LeaseSpec] = {}
        self._since: dict[int, tuple[int, int]] = {}
        self._of_worker: dict[int, int] = {}

    def seen(self, row: Change) -> None:
        """One row of the log."""
        if row.kind == "lease":
            self._lease(row)
        elif row.kind == "worker" and row.state == "DEAD":
            self.end(self._of_worker.pop(row.number, -1), row.t_ns)
        elif row.kind == "node" and row.state == "DEAD":
            for lease, (_, node_id) in list(self._since.items()):
                if node_id == row.number:
                    self.end(lease, row.t_ns)

    def _lease(self, row: Change) -> None:
        if isinstance(row.detail, LeaseSpec):
            self._specs[row.number] = row.detail
        if row.state != "GRANTED":
            self.end(row.number, row.t_ns)
        elif row.number in self._specs:
            self._since.setdefault(row.number, (row.t_ns, row.node_id))
            self._of_worker[row.worker_id] = row.number

    def end(self, lease: int, t_ns: int) -> None:
        """It holds nothing more, if it did."""
        if lease not in self._since:
            return
        begun_ns, node_id = self._since.pop(lease)
        spec = self._specs[lease]
        for name, units in spec.options.resources.units.items():
            plain, _, group = name.partition("_group_")
            if plain in {"CPU", "GPU"} and "_" not in group:
                held_s = (t_ns - begun_ns) / NS_PER_S
                self.held[spec.job_id, node_id, plain] += units * held_s

    def end_all(self, t_ns: int) -> None:
        """The run is over."""
        for lease in list(self._since):
            self.end(lease, t_ns)


def _held(recorded: Recorded) -> dict[tuple[int, int, str], float]:
    leases = _Leases()
    for row in in_order(recorded.rows):
        leases.seen(row)
    leases.end_all(recorded.end_ns)
    return leases.held
