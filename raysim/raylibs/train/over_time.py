"""A run of Ray Train over time: what its time went to, its worker groups, steps that are kept.

Real counterpart: the Train panel of the dashboard (``ray_train_controller_state``,
``ray_train_report_total_blocked_time_s``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raysim.raylibs.charts import Bar, Chart, Line, Mark, edges, middles, steps
from raysim.raylibs.train.records import RunRecord, Span
from raysim.units import to_seconds

MOST_BARS = 600
"""Phases drawn one by one; shorter ones are left out first."""
MOST_MARKS = 200
KEPT = "steps that are kept"
_ROWS = {
    "steps": "training", "data": "training", "checkpoints": "training", "reports": "training",
    "between": "training", "lost": "training",
}  # fmt: skip


def charts_of(record: RunRecord, says: dict[str, str]) -> tuple[Chart, ...]:
    """All of it; ``says`` has the phases in words."""
    merged = _merged(record.spans)
    shown = sorted(sorted(merged, key=lambda s: s.begin_ns - s.end_ns)[:MOST_BARS],
                   key=lambda s: s.begin_ns)  # fmt: skip
    bars = tuple(bar for s in shown for bar in _bars(s, says, record))
    stops = [
        Mark(at_s=to_seconds(s.at_ns), row="training" if record.attempts else "",
             text=f"{s.cause}: {s.text or 'the group stops'} (step {s.step:,})")
        for s in record.stops[:MOST_MARKS]
    ]  # fmt: skip
    return (
        Chart(
            key="phases", title="What the run did", left_out=len(merged) - len(shown),
            bars=bars,
            marks=tuple(stops),
            about="Phases of training and, between attempts, of starting again.",
        ),
        Chart(
            key="goodput", title="Goodput so far", unit="share", limit=1.0, lines=(_goodput(bars),),
            about="Share of the time since fit() that was steps which are kept.",
        ),
        Chart(
            key="steps-per-s", title="Steps", unit="per_s", lines=(_pace(record),),
            about="Steps done in each window, also those that are lost later.",
        ),
        Chart(
            key="steps", title="Steps done, steps held by a checkpoint",
            lines=(_progress(record), _held(record)), marks=tuple(stops),
            about="Where the first falls back, work was lost: its attempt began from the second.",
        ),
        Chart(
            key="workers", title="Workers", lines=(_workers(record),),
            about="Of the worker group; it is resized, or gone while it waits for nodes.",
        ),
    )  # fmt: skip


def _merged(spans: list[Span]) -> list[Span]:
    """Neighbours of one phase and attempt as one: steps are noted stretch by stretch."""
    found: list[Span] = []
    for span in spans:
        if span.end_ns <= span.begin_ns:
            continue
        last = found[-1] if found else None
        same = last is not None and (last.phase, last.attempt) == (span.phase, span.attempt)
        if last is not None and same and span.begin_ns <= last.end_ns:
            found[-1] = Span(last.phase, last.begin_ns, span.end_ns, last.attempt,
                             last.first_step, span.last_step)  # fmt: skip
        else:
            found.append(span)
    return found


def _bars(span: Span, says: dict[str, str], record: RunRecord) -> Iterator[Bar]:
    """One bar; of steps that a failure undid, those that are kept and those that are not."""
    row = _ROWS.get(span.phase, "starting again" if span.attempt else "starting")
    from_s, to_s = to_seconds(span.begin_ns), to_seconds(span.end_ns)
    attempt = f"attempt {max(1, span.attempt)}"
    if span.phase != "steps":
        yield Bar(row=row, from_s=from_s, to_s=to_s, state=says[span.phase], text=attempt)
        return
    first, last = span.first_step, span.last_step
    kept = max(first, min(last, record.safe_steps()[span.attempt - 1]))
    middle_s = from_s + (to_s - from_s) * ((kept - first) / (last - first) if last > first else 1.0)
    if middle_s > from_s:
        text = f"{attempt}, steps {first:,} to {kept:,}"
        yield Bar(row=row, from_s=from_s, to_s=middle_s, state=KEPT, text=text)
    if to_s > middle_s:
        text = f"{attempt}, steps {kept:,} to {last:,}"
        yield Bar(row=row, from_s=middle_s, to_s=to_s, state=says["lost"], text=text)


def _goodput(bars: tuple[Bar, ...]) -> Line:
    """Kept so far over the time so far, at the end of each bar."""
    kept_s, found = 0.0, []
    begun_s = min((bar.from_s for bar in bars), default=0.0)
    for bar in sorted(bars, key=lambda b: b.to_s):
        kept_s += (bar.to_s - bar.from_s) * (bar.state == KEPT)
        if bar.to_s > begun_s:
            found.append((bar.to_s, min(1.0, kept_s / (bar.to_s - begun_s))))
    return Line(name="goodput", points=tuple(found))


def _pace(record: RunRecord) -> Line:
    """Steps a second, spread evenly over the stretches they were done in."""
    at = edges(to_seconds(record.begin_ns), to_seconds(record.end_ns))
    done = [(s.begin_ns, s.end_ns, s.last_step - s.first_step)
            for s in record.spans if s.phase == "steps" and s.end_ns > s.begin_ns]  # fmt: skip
    if not done:
        return Line(name="steps", points=())
    times = np.array([to_seconds(t) for a, b, _ in done for t in (a, b)])
    steps_done = np.repeat(np.cumsum([0, *(n for _, _, n in done)]), 2)[1:-1]
    counted = np.interp(at, times, steps_done)
    pace = np.diff(counted) / np.diff(at)
    return Line(name="steps", points=tuple(zip(middles(at), pace.tolist(), strict=True)))


def _progress(record: RunRecord) -> Line:
    """The step each moment stands at."""
    points: list[tuple[float, float]] = [(to_seconds(record.begin_ns), 0.0)]
    attempt = 0
    for span in _merged(record.spans):
        if span.attempt != attempt and span.attempt:
            attempt = span.attempt
            resumed = float(record.attempts[attempt - 1].resume_step)
            at_s = to_seconds(span.begin_ns)
            points += [(at_s, points[-1][1]), (at_s, resumed)]
        if span.phase == "steps":
            points += [(to_seconds(span.begin_ns), float(span.first_step)),
                       (to_seconds(span.end_ns), float(span.last_step))]  # fmt: skip
    return Line(name="done", points=tuple(points))


def _held(record: RunRecord) -> Line:
    saved = sorted((s.registered_ns, s.step) for s in record.saved)
    points = [(to_seconds(record.begin_ns), 0.0), *((to_seconds(t), float(n)) for t, n in saved)]
    end_s = to_seconds(record.end_ns)
    return steps("held by a checkpoint", [*points, (end_s, points[-1][1])])


def _workers(record: RunRecord) -> Line:
    return steps("workers", _sizes(record))


def _sizes(record: RunRecord) -> Iterator[tuple[float, float]]:
    yield to_seconds(record.begin_ns), 0.0
    ends = {s.found_ns for s in record.stops}
    moments = sorted([*((a.begin_ns, float(a.world_size)) for a in record.attempts),
                      *((t, 0.0) for t in ends)])  # fmt: skip
    for t_ns, size in moments:
        yield to_seconds(t_ns), size
    yield to_seconds(record.end_ns), moments[-1][1] if moments else 0.0
