"""What a program's engines did, as the report says it: of each model requests, times and tokens.

Real counterpart: vLLM's metrics (``vllm:time_to_first_token_seconds`` and the like). Times are an
engine's own, from when it has a request; what Serve adds is in Serve's report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raylibs.llm.report import (
    ITERATIONS,
    latencies,
    metrics_of,
    times_of,
    tokens_in_words,
)
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.serving.engine import Served
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.llm.engine import Engine
    from raysim.rayapi.session import Session

LIBRARY = "llm"
BUSY = 0.9
"""An engine that computes for a larger share of the time has requests under way all the time."""


class Engines:
    """All engines of a session, by model."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_model: dict[str, list[Engine]] = {}

    def finish(self) -> None:
        """The driver ends."""
        for model, engines in self._by_model.items():
            if any(engine.outcomes for engine in engines):
                self._session.env.reports.append(_report(model, engines))

    def add(self, engine: Engine) -> None:
        """One more."""
        self._by_model.setdefault(engine.name, []).append(engine)


def engines_of(session: Session) -> Engines:
    """Made with the first engine."""
    return session.library(LIBRARY, Engines)


def _report(model: str, engines: list[Engine]) -> LibraryReport:
    outcomes = [o for engine in engines for o in engine.outcomes]
    began_ns = min(o.sent_ns for o in outcomes)
    took_s = (max(o.finished_ns for o in outcomes) - began_ns) / NS_PER_S
    gpus = sum(engine.settings.gpus for engine in engines)
    times = times_of(outcomes)
    metrics = metrics_of(outcomes, times, took_s, gpus)
    return LibraryReport(
        kind=LIBRARY, ok=True,
        text=f"{model} in {len(engines):,} engines on {gpus:,} GPUs: {len(outcomes):,} requests, "
        f"{metrics['requests_per_s']:,.2f}/s, {tokens_in_words(metrics)}{_adapters(engines)}",
        metrics=metrics, inputs=_INPUTS,
        tables=(latencies(times, "latency of engines"), _engines(engines, took_s)),
        bound_by=_bound_by(model, engines, took_s),
        simplifications=("What models say is not known: their answers are placeholders.",),
    )  # fmt: skip


def _adapters(engines: list[Engine]) -> str:
    served = [e.runs.adapters for e in engines if e.runs.adapters is not None]
    used = {o.request.adapter for e in engines for o in e.outcomes} - {None}
    if not used:
        return ""
    read, copied = (sum(a.loads[kind] for a in served) for kind in ("read", "copied"))
    rank = engines[0].settings.max_lora_rank
    return (
        f"; {len(used):,} LoRA adapters, taken to be of rank {rank} on all products, read {read:,} "
        f"times and copied to GPUs {copied:,} times"
    )


def _bound_by(model: str, engines: list[Engine], took_s: float) -> str:
    """Nothing said where no engine computes nearly all the time: Serve knows more then."""
    busiest = max(engine.runs.busy_ns for engine in engines) / NS_PER_S / took_s
    if busiest <= BUSY:
        return ""
    return f"{model}'s engines: the busiest computes {busiest:.0%} of the time."


def _engines(engines: list[Engine], took_s: float) -> Table:
    rows = tuple(
        (
            f"engine {number}", len(engine.outcomes), _tokens(engine.outcomes),
            sum(o.hit_tokens for o in engine.outcomes), engine.runs.scheduler.preemptions,
            engine.runs.busy_ns / NS_PER_S / took_s,
        )
        for number, engine in enumerate(engines)
    )  # fmt: skip
    columns: tuple[tuple[str, Unit], ...] = (
        ("engines", "text"), ("requests", "count"), ("tokens", "count"),
        ("found in the cache", "count"), ("preempted", "count"), ("busy", "share"),
    )  # fmt: skip
    return Table(title="engines", columns=columns, rows=rows)


def _tokens(outcomes: list[Served]) -> int:
    return sum(o.request.output_tokens for o in outcomes)


_INPUTS = (
    ITERATIONS,
    Input(name="tokens of an answer, where a request says no more", value="338", basis="assumed",
          source="ShareGPT's mean (vLLM, SOSP 2023)"),
)  # fmt: skip
