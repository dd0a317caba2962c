"""Autoscaling of one deployment: reports of handles in, a number of replicas out.

Real counterpart: ``DeploymentAutoscalingState`` of ``_private/autoscaling_state.py`` (ray 2.60).
Ray asks at every step of the controller's loop; the mean over the look-back moves only because the
last sample is taken to hold until now, and it moves one way. So the next step whose answer can
differ is worked out (``next_look_s``), and the steps between are not played; but those of a policy
of one's own are, each.

Not modelled: metrics collected on replicas in place of handles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from raysim.raylibs.serve.config import AutoscalingConfig, Situation
from raysim.raylibs.serve.defaults import RAY_2_60, ServeDefaults
from raysim.raylibs.serve.policy import NO_WISH, PolicyState, decide, delay_s, desired_replicas
from raysim.raylibs.serve.timeseries import Merged, Points, merged

_PRECISION_S = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleReport:
    """``HandleMetricReport``: what one handle has queued and running, sample by sample."""

    handle_id: str
    at_s: float
    queued: Points
    running: Mapping[str, Points]
    """By replica id."""


class DeploymentAutoscaling:
    """What the controller knows of one deployment's load."""

    def __init__(self, config: AutoscalingConfig, *, defaults: ServeDefaults = RAY_2_60) -> None:
        self.config = config
        self.running: tuple[str, ...] = ()
        """Replicas that run, by id."""
        self._defaults = defaults
        self._reports: dict[str, HandleReport] = {}
        self._state: PolicyState = NO_WISH
        self._total: Merged | None = None
        self._scaled_s: tuple[float | None, float | None] = None, None
        """When the target last grew, and when it last fell."""

    def report(self, report: HandleReport) -> None:
        """A handle's report; an older one than the last is late and dropped."""
        last = self._reports.get(report.handle_id)
        if last is None or report.at_s > last.at_s:
            self._reports[report.handle_id] = report
            self._total = None

    def set_running(self, replicas: tuple[str, ...]) -> None:
        """Replicas that run now."""
        if replicas != self.running:
            self.running = replicas
            self._total = None

    def forget(self, handle_id: str) -> None:
        """Its process has died."""
        if self._reports.pop(handle_id, None) is not None:
            self._total = None

    def total_requests(self, now_s: float) -> float:
        """Queued and running, aggregated over the look-back."""
        self._drop_stale(now_s)
        if self._total is None:
            alive = dict.fromkeys(self.running)
            series = [r.queued for r in self._reports.values()]
            for report in self._reports.values():
                series += [p for replica, p in report.running.items() if replica in alive]
            self._total = merged(series)
        return self._total.at(now_s, self.config.aggregation_function)

    def decide(self, target: int, now_s: float) -> int:
        """``get_decision_num_replicas``: the target from now on."""
        total = self.total_requests(now_s)
        own = None
        if self.config.policy is not None:
            own = partial(self.config.policy, self._situation(target, total, now_s))
        decision, self._state = decide(
            total, len(self.running), target, self.config, self._state, now_s, own
        )
        if decision != target:
            up, down = self._scaled_s
            self._scaled_s = (now_s, down) if decision > target else (up, now_s)
        return decision

    def _situation(self, target: int, total: float, now_s: float) -> Situation:
        queued = merged([r.queued for r in self._reports.values()])
        return Situation(
            now_s, self.running, target, total, queued.at(now_s, self.config.aggregation_function),
            *self._scaled_s,
        )  # fmt: skip

    def next_look_s(self, target: int, now_s: float) -> float | None:
        """When ``decide`` may next say something else, if no report comes before.

        None: not until one does.
        """
        if self.config.policy is not None:
            return now_s + self._defaults.control_loop_interval_s
        looks = [report.at_s + self._timeout_s for report in self._reports.values()]
        state = self._state
        if state.since_s is not None:
            looks.append(state.since_s + delay_s(state.direction, target, self.config))
        turn_s = self._turn_s(target, now_s)
        if turn_s is not None:
            looks.append(turn_s)
        later = [t for t in looks if t > now_s]
        return min(later) if later else None

    @property
    def _timeout_s(self) -> float:
        return max(2 * self.config.metrics_interval_s, self._defaults.min_handle_metrics_timeout_s)

    def _drop_stale(self, now_s: float) -> None:
        stale = [h for h, r in self._reports.items() if now_s - r.at_s >= self._timeout_s]
        for handle_id in stale:
            self.forget(handle_id)

    def _turn_s(self, target: int, now_s: float) -> float | None:
        """When the direction wanted changes, before the next report is due."""
        if not self.running or self._total is None:
            return None
        low, high = now_s, now_s + self._timeout_s
        direction = self._direction(target, low)
        if self._direction(target, high) == direction:
            return None
        while high - low > _PRECISION_S:
            middle = (low + high) / 2
            if self._direction(target, middle) == direction:
                low = middle
            else:
                high = middle
        return high

    def _direction(self, target: int, at_s: float) -> int:
        assert self._total is not None, "asked before any total"
        total = self._total.at(at_s, self.config.aggregation_function)
        wanted = desired_replicas(total, len(self.running), self.config)
        return (wanted > target) - (wanted < target)
