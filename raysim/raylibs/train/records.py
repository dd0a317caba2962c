"""What a run did, moment by moment: its states, phases, checkpoints and failures.

An observer, not a part of Ray Train: whoever plays a part of the run says when another phase of it
begins, and every nanosecond from ``fit()`` to its end belongs to one phase. Which steps were work
that no checkpoint held is known only when the next attempt begins, and told apart at the end
(``parts_ns``); a step that a failure cuts short is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from raysim.raylibs.data.stats import ExecutionStats

PARTS = (
    "steps", "data", "checkpoints", "reports", "between", "lost", "startup", "detection",
    "teardown", "waiting", "restart", "load",
)  # fmt: skip
"""``steps`` are those kept; ``between`` them a user's loop does its own work; ``waiting`` is for
nodes; ``restart`` is every start but the first."""


@dataclass(slots=True)
class Span:
    """A stretch of one phase; of ``steps``, from one step to another."""

    phase: str
    begin_ns: int
    end_ns: int
    attempt: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that was registered."""

    step: int
    reported_ns: int
    """When ``report()`` was called."""
    registered_ns: int
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt ended, other than by finishing."""

    at_ns: int
    found_ns: int
    """When the controller knew."""
    cause: str
    """``worker``, ``preemption``, ``start`` (of the group) or ``resize``."""
    text: str
    step: int
    """Steps that had been done."""


@dataclass(slots=True)
class Attempt:
    """One life of a worker group."""

    world_size: int
    begin_ns: int
    resume_step: int
    done_step: int
    nodes: tuple[int, ...] = ()


@dataclass(slots=True)
class RunRecord:
    """All of one run."""

    name: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    states: list[tuple[int, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    reports: int = 0
    """Collected by the controller."""
    stored_bytes: float = 0.0
    """In the store now."""
    most_stored_bytes: float = 0.0
    broke_ns: int | None = None
    """When training of this attempt ended without anybody having been told yet."""
    data: list[ExecutionStats] = field(default_factory=list)
    """Of executions that fed the workers, epoch after epoch."""
    group_waits: int = 0
    """Placement groups given back after their time limit."""

    # ---- while it runs ---------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps done, counted from the first of the job."""
        return self.attempts[-1].done_step if self.attempts else 0

    def state(self, now_ns: int, name: str) -> None:
        """The controller is in another state."""
        if not self.states or self.states[-1][1] != name:
            self.states.append((now_ns, name))

    def phase(self, now_ns: int, phase: str) -> None:
        """Another phase begins; what ran before it ends."""
        assert phase in PARTS, f"no phase {phase!r}"
        self._close(now_ns)
        number = len(self.attempts)
        self.spans.append(Span(phase, now_ns, now_ns, number, self.step, self.step))

    def stepped(self, now_ns: int, steps: int) -> None:
        """So many steps of the phase under way have ended."""
        attempt, span = self.attempts[-1], self.spans[-1]
        assert span.phase == "steps", f"steps end in phase {span.phase}"
        attempt.done_step += steps
        span.last_step = attempt.done_step
        self._close(now_ns)

    def stretch(self, begin_ns: int, steps: int, parts_ns: Mapping[str, int]) -> None:
        """Steps that ended together, and what time went to between them; ``steps`` first."""
        self.phase(begin_ns, "steps")
        at_ns = begin_ns + parts_ns["steps"]
        self.stepped(at_ns, steps)
        for phase, length_ns in parts_ns.items():
            if phase != "steps" and length_ns:
                self.phase(at_ns, phase)
                at_ns += length_ns
        self._close(at_ns)

    def broke(self, last_end_ns: int, now_ns: int, then: str = "detection") -> None:
        """Training stands still; what was under way since the last step's end is lost."""
        self.broke_ns = now_ns
        if last_end_ns < now_ns:
            self.phase(last_end_ns, "lost")
        self.phase(now_ns, then)

    def began(self, now_ns: int, world_size: int, resume_step: int) -> None:
        """Another attempt."""
        self.attempts.append(Attempt(world_size, now_ns, resume_step, resume_step))
        self.broke_ns = None

    def ended(self, now_ns: int) -> None:
        """``fit()`` returns."""
        self._close(now_ns)
        self.end_ns = now_ns

    def _close(self, now_ns: int) -> None:
        if self.spans:
            self.spans[-1].end_ns = now_ns

    # ---- afterwards ------------------------------------------------------------------------------

    def kept_steps(self) -> int:
        """Steps that the run ends with."""
        return self.safe_steps()[-1] if self.attempts else 0

    def kept_by_size(self) -> dict[int, int]:
        """Steps that are kept, by the size of the group that made them."""
        found: Counter[int] = Counter()
        for attempt, safe in zip(self.attempts, self.safe_steps(), strict=True):
            found[attempt.world_size] += safe - attempt.resume_step
        return dict(found)

    def executed_steps(self) -> int:
        """All that were done."""
        return sum(a.done_step - a.resume_step for a in self.attempts)

    def safe_steps(self) -> list[int]:
        """Of each attempt, the last step that is kept of it."""
        if not self.attempts:
            return []
        resumed = [a.resume_step for a in self.attempts[1:]]
        last = self.attempts[-1]
        if self.states and self.states[-1][1] == "FINISHED":
            return [*resumed, last.done_step]
        held = max([s.step for s in self.saved] or [0])
        return [*resumed, max(held, last.resume_step)]

    def parts_ns(self) -> dict[str, int]:
        """Of each phase, its nanoseconds; they add up to the wall time."""
        safe = self.safe_steps()
        parts: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
        for span in self.spans:
            length_ns = span.end_ns - span.begin_ns
            if span.phase not in {"steps", "data", "checkpoints", "reports"} or not span.attempt:
                parts[span.phase] += length_ns
                continue
            limit = safe[span.attempt - 1]
            steps = span.last_step - span.first_step
            if not steps or span.last_step <= limit:
                serves = span.last_step + (span.phase == "steps" and not steps)
                parts["lost" if serves > limit else span.phase] += length_ns
                continue
            kept = max(0, limit - span.first_step)
            kept_ns = length_ns * kept // steps
            parts["steps"] += kept_ns
            parts["lost"] += length_ns - kept_ns
        return dict(parts)

    @property
    def goodput(self) -> float:
        """Share of the wall time that is kept steps."""
        wall_ns = self.end_ns - self.begin_ns
        return self.parts_ns()["steps"] / wall_ns if wall_ns else 1.0
