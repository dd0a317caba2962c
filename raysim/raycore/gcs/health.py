"""Health checks: how long a dead node stays alive in everybody's mind.

Real counterpart: ``src/ray/gcs/gcs_health_check_manager.cc``. The GCS asks every raylet whether it
is alive: first 5 s after registration, then 3 s after each reply. A resource report heard within
the last 3 s replaces a check, which then falls 3 s after that report. A call that gets no answer
fails after 10 s, one to a closed port at once; five failures in a row and the node is dead. Hence
12-15 s for a killed raylet and 62-65 s for a cable pulled.

Checks that succeed change nothing but the time of the next one, so none is played: that time is
worked out when a report or a failure comes. Only checks that fail are events.

Not modelled: the round trip of a check that succeeds (under a millisecond), by which the phase of
later ones would drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from raysim.kernel.clock import Handle
from raysim.raycore.ids import NodeID
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs

How = Literal["answers", "refuses", "silent"]


class _Checks:
    """One node's."""

    __slots__ = ("failures", "heard_ns", "how", "next_ns", "timer")

    def __init__(self, next_ns: int) -> None:
        self.next_ns = next_ns
        """When the next check is due, as far as is known at ``heard_ns``."""
        self.heard_ns = -(1 << 62)
        """Its last report."""
        self.how: How = "answers"
        self.failures = 0
        self.timer: Handle | None = None
        """While checks fail: the next, or the end of one that gets no answer."""


class GcsHealthCheckManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        config = gcs.env.config
        self._initial_ns = config.health_check_initial_delay_ms * NS_PER_MS
        self._period_ns = config.health_check_period_ms * NS_PER_MS
        self._timeout_ns = config.health_check_timeout_ms * NS_PER_MS
        self._threshold = config.health_check_failure_threshold
        self._checks: dict[NodeID, _Checks] = {}

    def add(self, node_id: NodeID) -> None:
        """Begin to check."""
        self.remove(node_id)
        self._checks[node_id] = _Checks(self._gcs.sim.now_ns + self._initial_ns)

    def remove(self, node_id: NodeID) -> None:
        """Check no more."""
        checks = self._checks.pop(node_id, None)
        if checks is not None and checks.timer is not None:
            self._gcs.sim.cancel(checks.timer)

    def heard_of(self, node_id: NodeID) -> None:
        """A report has come: as good as a check."""
        checks = self._checks.get(node_id)
        if checks is not None:
            self._catch_up(checks)
            checks.heard_ns = self._gcs.sim.now_ns

    def unreachable(self, node_id: NodeID) -> bool:
        """Whether checks fail at present."""
        checks = self._checks.get(node_id)
        return checks is not None and checks.how != "answers"

    def changed(self, node_id: NodeID, how: How) -> None:
        """From now on checks of this node end like this."""
        checks = self._checks.get(node_id)
        if checks is None or checks.how == how:
            return
        was, checks.how = checks.how, how
        if was == "answers" and checks.timer is None:
            self._catch_up(checks)
            self._arm(checks, node_id)

    def _arm(self, checks: _Checks, node_id: NodeID) -> None:
        delay_ns = max(0, checks.next_ns - self._gcs.sim.now_ns)
        checks.timer = self._gcs.after(delay_ns, self._check, node_id)

    def _catch_up(self, checks: _Checks) -> None:
        """Skip the checks that succeeded, up to the present."""
        now_ns, period_ns = self._gcs.sim.now_ns, self._period_ns
        if checks.next_ns >= now_ns:
            return
        fresh_until_ns = checks.heard_ns + period_ns
        checks.next_ns = max(checks.next_ns, fresh_until_ns)
        if checks.next_ns < now_ns:
            behind_ns = now_ns - checks.next_ns
            checks.next_ns += -(-behind_ns // period_ns) * period_ns

    def _check(self, node_id: NodeID) -> None:
        checks, now_ns = self._checks[node_id], self._gcs.sim.now_ns
        checks.timer = None
        checks.next_ns = now_ns
        if checks.heard_ns + self._period_ns > now_ns:
            checks.next_ns = checks.heard_ns + self._period_ns
            self._arm(checks, node_id)
        elif checks.how == "answers":
            self._succeeded(checks)
        elif checks.how == "refuses":
            self._failed(checks, node_id)
        else:
            checks.timer = self._gcs.after(self._timeout_ns, self._no_answer, node_id)

    def _no_answer(self, node_id: NodeID) -> None:
        checks = self._checks[node_id]
        checks.timer = None
        if checks.how == "answers":  # the cable is back, and the answer with it
            self._succeeded(checks)
        else:
            self._failed(checks, node_id)

    def _succeeded(self, checks: _Checks) -> None:
        checks.failures = 0
        checks.next_ns = self._gcs.sim.now_ns + self._period_ns

    def _failed(self, checks: _Checks, node_id: NodeID) -> None:
        checks.failures += 1
        if checks.failures >= self._threshold:
            self._gcs.nodes.failed_checks(node_id)
            return
        checks.next_ns = self._gcs.sim.now_ns + self._period_ns
        self._arm(checks, node_id)
