"""Reports of this node's resources to the GCS.

Real counterpart: ``src/ray/ray_syncer`` and ``local_resource_manager.cc``: every 100 ms, if
anything has changed since the last report (resources by their version, not by their amounts).
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.kernel.component import Component
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import ReportResources
from raysim.raycore.raylet.worker_pool import NS_PER_MS
from raysim.raycore.room import Surroundings


class Reporter:
    """Sends what ``make()`` says on the next tick after a change, unless it is what was sent."""

    __slots__ = (
        "_armed", "_changes", "_epoch_ns", "_gcs", "_last", "_make", "_node_id", "_period_ns",
        "_room",
    )  # fmt: skip

    def __init__(
        self,
        room: Component,
        env: Surroundings,
        node_id: NodeID,
        gcs: GcsClient,
        make: Callable[[], ReportResources],
    ) -> None:
        self._room = room
        self._node_id = node_id
        self._changes = env.changes
        self._gcs = gcs
        self._make = make
        self._epoch_ns = env.sim.now_ns
        self._period_ns = env.config.raylet_report_resources_period_milliseconds * NS_PER_MS
        self._armed = False
        self._last: ReportResources | None = None

    def changed(self) -> None:
        """Something that is reported may have changed."""
        if not self._armed:
            self._armed = True
            self._changes.count(self._node_id)
            passed_ns = self._room.sim.now_ns - self._epoch_ns
            self._room.after(self._period_ns - passed_ns % self._period_ns, self._report)

    def start_over(self) -> None:
        """The GCS has forgotten: report again."""
        self._last = None
        self.changed()

    def _report(self, _: object) -> None:
        self._armed = False
        self._changes.count(self._node_id)  # of what changed since the first change
        report = self._make()
        if report != self._last:
            self._last = report
            self._gcs.send(report)
