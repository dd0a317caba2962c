"""What processes that only answer have done with their GPUs: a row for each stage or deployment.

Real counterpart: ``nvidia-smi`` beside a pipeline of Ray Data, a deployment of Serve or tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from raysim.rayapi.ranks.gpu_use import LIBRARY
from raysim.raylibs.report import Cell, LibraryReport, Table
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.ranks.gpu_use import GpuUse, Tally
    from raysim.rayapi.session import Session

SERVE = "serve"
"""What Serve keeps in a session (`rayapi.serve.serving`)."""
BINDS = 0.7
"""Of the time from its first work to its last, beyond which something binds (assumed)."""
TELLS = 0.3
"""Of the run that they are at work, below which something else is what it takes (assumed)."""
HELPS = {
    "kernels": "more GPUs for {name} (concurrency=, num_replicas=), lower precision, torch.compile",
    "launches": "larger batches for {name}, torch.compile: Python issues kernels slower than they "
    "run",
    "copies": "smaller types to copy for {name} (uint8 pictures, converted on the GPU), pinned "
    "memory",
    "own work on the CPU": "a stage of its own, without GPUs, for what {name} computes on the CPU",
    "input": "faster stages before {name} (more CPUs where their tasks wait for some), larger "
    "batches, or a part of a GPU (num_gpus=0.5)",
    "requests": "fewer replicas of {name}, or a part of a GPU for each (num_gpus=0.5): requests "
    "come more slowly than they answer",
}
OF_SCRIPTS = HELPS | {
    "input": "a faster loop around {name}'s forwards: more num_workers of its DataLoader, larger "
    "batches, outputs left on the GPU until the end",
}
"""The same of a launched script."""
SIMPLIFICATION = (
    "the choice of kernels takes no time in processes that answer; generated "
    "texts are as long as they may be."
)


def answered(session: Session, use: GpuUse) -> None:
    """At the end of a program some processes of which have answered."""
    found = {name: tally for name, tally in use.tallies.items() if tally.forwards}
    iterates = {"rollout", "update"} <= {each.phase for each in use.spent}  # which says it all
    if found and not iterates:
        session.env.reports.append(answers_of(found, session))


def shares(tally: Tally) -> dict[str, float]:
    """Of what a process has of time, what each part takes; the rest it waits for input."""
    each = max(1, tally.span_ns)
    parts = {
        "kernels": tally.busy_ns / max(1, tally.gpus), "launches": tally.issued_ns,
        "copies": tally.copy_ns, "own work on the CPU": tally.cpu_ns,
    }  # fmt: skip
    return {name: ns / each for name, ns in parts.items()}


def binds(tally: Tally) -> tuple[str, float]:
    """The part that takes most of the time, or the input, where its processes wait for that."""
    found = shares(tally)
    most = max(found, key=lambda name: found[name])
    one_after_the_other = max(found["kernels"], found["launches"])
    used = one_after_the_other + found["copies"] + found["own work on the CPU"]
    return (most, found[most]) if used >= BINDS else ("input", max(0.0, 1.0 - used))


def waits_for(session: Session, name: str) -> str:
    """What a process of this name waits for: ``requests`` if it is a replica, else ``input``."""
    serve = session.libraries.get(SERVE)
    apps = () if serve is None else serve.apps.values()
    return "requests" if any(name in app.built.code for app in apps) else "input"


def answers_of(
    found: Mapping[str, Tally], session: Session, helps: Mapping[str, str] = HELPS
) -> LibraryReport:
    """What processes of these names come to, and what would help them."""
    rows: list[tuple[Cell, ...]] = []
    for name, tally in found.items():
        share = shares(tally)
        rows.append((
            name, tally.processes, tally.busy_ns / NS_PER_S, share["kernels"], share["launches"],
            share["copies"], share["own work on the CPU"], tally.held_bytes,
        ))  # fmt: skip
    longest = max(found, key=lambda name: found[name].busy_ns)
    what, share_of_it = binds(found[longest])
    waits = what == "input"
    what = waits_for(session, longest) if waits else what
    tells = found[longest].span_ns / found[longest].processes >= TELLS * session.now_ns
    total_s = sum(tally.busy_ns for tally in found.values()) / NS_PER_S
    table = Table(
        title="GPUs that answer",
        columns=(
            ("GPUs that answer", "text"), ("processes", "count"), ("kernels", "seconds"),
            ("of their time", "share"), ("launches", "share"), ("copies", "share"),
            ("own CPU", "share"), ("memory", "bytes"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
    bound = f"{longest} waits for {what}" if waits else f"{what} of {longest}"
    forwards = sum(tally.forwards for tally in found.values())
    return LibraryReport(
        kind=LIBRARY, ok=True,
        text=f"{forwards:,} forwards, {total_s:,.2f} s of kernels.",
        metrics={"gpu_kernel_seconds": total_s, "gpu_forwards": float(forwards)},
        tables=(table,), simplifications=(SIMPLIFICATION,),
        bound_by=f"{bound}: {share_of_it:.0%} of its processes' time" if tells else "",
        would_help=(helps[what].format(name=longest),) if tells else (),
    )  # fmt: skip
