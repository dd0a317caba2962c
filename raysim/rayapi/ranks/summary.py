"""How an iteration of an RLHF program divides: rollout, forwards, update, weight sync, idle GPUs.

Real counterpart: the timers that trainers of this kind log (``timing/generate`` and the like).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.rayapi.ranks.gpu_use import PHASES, GpuUse, Phase, Spent
from raysim.raylibs.report import Cell, LibraryReport, Table
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.session import Session

LIBRARY = "rlhf"
CALL_NS = 20_000_000
"""Between two parameters of one weight sync lie calls of Ray: up to so much belongs to it."""
SAYS: dict[Phase, str] = {
    "rollout": "rollout", "forward": "forwards (rewards, references, log probabilities)",
    "update": "update", "weight sync": "weight sync", "sleep and wake": "sleep and wake",
}  # fmt: skip
HELPS: dict[Phase, str] = {
    "rollout": "more engines, or fewer tokens of a response",
    "forward": "more GPUs for rewards and references, or larger micro-batches of them",
    "update": "more GPUs for training",
    "weight sync": "fewer and larger buckets of parameters",
    "sleep and wake": "engines on GPUs of their own",
}
SIMPLIFICATIONS = (
    "Engines and trainers on one GPU do not slow each other; responses are as long as they may be.",
)


def iterations(session: Session, use: GpuUse) -> None:
    """At the end of a program that has rolled out and updated."""
    phases = {each.phase for each in use.spent}
    if {"rollout", "update"} <= phases:
        session.env.reports.append(_report(use))


def union_ns(spans: list[tuple[int, int]], gap_ns: int = 0) -> int:
    """Nanoseconds in at least one of them, or in a gap so short between two."""
    total, until = 0, -1
    for begin, end in sorted(spans):
        first = until if 0 <= begin - until <= gap_ns and until >= 0 else begin
        total += max(0, end - max(first, until))
        until = max(until, end)
    return total


def rounds(spent: list[Spent]) -> int:
    """Rollouts that an update has come after: those without one between them are one."""
    count, after_update = 0, True
    for each in sorted(spent, key=lambda s: s.begin_ns):
        if each.phase == "update":
            after_update = True
        elif each.phase == "rollout" and after_update:
            count, after_update = count + 1, False
    return count


def busy_ns(spent: list[Spent]) -> int:
    """Of all GPUs together; what two processes do on one at a time counts once."""
    by_place: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in spent:
        for place in each.places:
            by_place.setdefault(place, []).append((each.begin_ns, each.end_ns))
    return sum(map(union_ns, by_place.values()))


def _report(use: GpuUse) -> LibraryReport:
    first = min(s.begin_ns for s in use.spent if s.phase == "rollout")
    within = [s for s in use.spent if s.begin_ns >= first]
    last = max(s.end_ns for s in within)
    count, gpus, wall_ns = rounds(within), len(use.places), last - first
    idle = 1 - busy_ns(within) / (gpus * wall_ns)
    rows, took_s = list[tuple[Cell, ...]](), dict[Phase, float]()
    for phase in PHASES:
        own = [s for s in within if s.phase == phase]
        if not own:
            continue
        gap_ns = CALL_NS if phase == "weight sync" else 0
        length_ns = union_ns([(s.begin_ns, s.end_ns) for s in own], gap_ns)
        took_s[phase] = length_ns / NS_PER_S / count
        rows.append((
            SAYS[phase], took_s[phase], length_ns / wall_ns, busy_ns(own) / (gpus * wall_ns),
            use.fullest.get(phase, (0.0,))[0],
        ))  # fmt: skip
    nothing_ns = wall_ns - union_ns([(s.begin_ns, s.end_ns) for s in within], CALL_NS)
    rows.append((
        "none of these", nothing_ns / NS_PER_S / count, nothing_ns / wall_ns, None, None
    ))  # fmt: skip
    each_s = wall_ns / NS_PER_S / count
    most = max(took_s, key=lambda phase: took_s[phase])
    table = Table(
        title="an iteration",
        columns=(
            ("an iteration", "text"), ("time", "seconds"), ("share", "share"),
            ("of all GPUs", "share"), ("fullest GPU", "bytes"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
    return LibraryReport(
        kind=LIBRARY, ok=True,
        text=f"{count:,} iterations of {each_s:,.1f} s on {gpus:,} GPUs, which are idle "
        f"{idle:.0%} of the time.",
        metrics={
            "iteration_seconds": each_s, "gpu_idle": idle,
            **{f"{phase.replace(' ', '_')}_seconds": s for phase, s in took_s.items()},
        },
        tables=(table,), simplifications=SIMPLIFICATIONS,
        bound_by=f"{SAYS[most]}: {took_s[most] / each_s:.0%} of an iteration",
        would_help=(HELPS[most],),
    )  # fmt: skip
