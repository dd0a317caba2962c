"""An LLM served by a fleet, and clients that ask it: time to tokens, throughput, what binds.

Real counterpart: ``serve.run(build_openai_app(...))`` and ``vllm bench serve`` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysim.kernel.rng import Streams
from raysim.models.mixers import UNTIMED
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, now, wait_for
from raysim.raylibs.llm.config import LLMApp
from raysim.raylibs.llm.over_time import charts_of, little
from raysim.raylibs.llm.report import (
    ITERATIONS,
    PERCENTS,
    latencies,
    metrics_of,
    times_of,
    tokens_in_words,
)
from raysim.raylibs.llm.server import Replicas, serve
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.warnings import PlannerWarning
from raysim.serving.capacity import LIBRARIES_BYTES
from raysim.serving.engine import Served
from raysim.serving.fleet import TOKEN_S
from raysim.serving.loads import Clients, Load
from raysim.units import format_bytes

BUSY = 0.9
MANY_PREEMPTED = 0.02
MANY_CUT = 0.02
_AT = ("mean", *(f"p{percent}" for percent in PERCENTS))
KEEPS_UP = 0.93
"""Of the offered rate, over a run whose last requests end after the last has come."""
SLOW_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmJob:
    """Serve this, and send it that."""

    app: LLMApp
    load: Load
    kind: str = "llm"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """What targets may limit."""
        return {
            "requests_per_s": "per_s", "output_tokens_per_s": "per_s", "tokens_per_gpu_s": "per_s",
            **{f"{time}_{at}": "seconds" for time in ("ttft", "tpot") for at in _AT},
            "cold_start": "seconds",
            "usd_per_million_output_tokens": "usd",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        del process
        began_ns = yield now()
        replicas: Replicas = yield from serve(self.app, streams("llm/router"))
        if replicas.refusal:
            return self._refused(replicas.refusal)
        ready_ns = yield now()
        over = Event()
        sim = replicas.fleet.simulation
        clients = Clients(sim, replicas.fleet, self.load, streams("llm/clients"), over.set)
        clients.start()
        yield wait_for(over)
        return self._report(replicas, clients.served, (ready_ns - began_ns) / 1e9, ready_ns)

    def _refused(self, why: str) -> LibraryReport:
        return LibraryReport(
            kind=self.kind, ok=False, text=f"{self.app.model} cannot be served: {why}.",
            metrics={}, inputs=_INPUTS,
        )  # fmt: skip

    def _report(
        self, replicas: Replicas, served: list[Served], cold_s: float, ready_ns: int
    ) -> LibraryReport:
        app, fleet = self.app, replicas.fleet
        took_s = (max(s.finished_ns for s in served) - ready_ns) / 1e9
        tokens = sum(s.request.output_tokens for s in served)
        prompts = sum(s.request.prompt_tokens for s in served)
        gpus = app.engine.gpus * (app.num_replicas + app.prefill_replicas)
        engines = (*fleet.engines, *fleet.prefill)
        busy = sum(e.busy_ns for e in engines) / 1e9 / took_s / len(engines)
        ingress = app.ingress
        streaming = tokens * ingress.token_s + prompts * ingress.parse_token_s
        loop = streaming / took_s / ingress.replicas if ingress.replicas else 0.0
        preempted = sum(s.preemptions > 0 for s in served) / len(served)
        times = times_of(served)
        metrics = metrics_of(served, times, took_s, gpus) | {"cold_start": cold_s}
        return LibraryReport(
            kind=self.kind, ok=True,
            text=f"{app.model} on {gpus:,} GPU{'s' * (gpus != 1)}: "
            f"{metrics['requests_per_s']:,.2f} requests/s, {tokens_in_words(metrics)}",
            metrics=metrics,
            tables=(latencies(times), _memory(replicas), self._start(cold_s)),
            bound_by=self._bound_by(busy, loop, preempted, metrics["requests_per_s"]),
            meanwhile="requests are served",
            would_help=self._would_help(busy, loop, metrics["requests_per_s"]),
            warnings=(*self._warnings(loop, preempted), *self._cut(served)),
            inputs=_INPUTS,
            simplifications=(
                "Experts are chosen evenly; the number of replicas stands.",
                *([UNTIMED] if any(b.scan for b in app.decoder.blocks) else []),
            ),
            detail={
                "engines_busy": busy, "ingress_busy": loop, "preempted": preempted,
                "hit_tokens": sum(s.hit_tokens for s in served),
            },
            charts=charts_of(replicas, served, ready_ns, little(served, took_s, self.load)),
        )  # fmt: skip

    def _keeps_up(self, requests_per_s: float) -> bool:
        rate = self.load.rate_per_s
        return rate is not None and requests_per_s > KEEPS_UP * rate

    def _bound_by(self, busy: float, loop: float, preempted: float, requests_per_s: float) -> str:
        if loop > BUSY and loop > busy - BUSY:
            return f"The ingress: its processes are busy {loop:.0%} of the time."
        if preempted > MANY_PREEMPTED:
            return "The cache of keys and values: sequences are preempted."
        if self._keeps_up(requests_per_s):
            return f"Nothing: requests are served as they come; the ingress is busy {loop:.0%}."
        if busy > BUSY:
            return f"The engines: they are busy {busy:.0%} of the time."
        return "The clients: too few requests are under way."

    def _would_help(self, busy: float, loop: float, requests_per_s: float) -> tuple[str, ...]:
        if loop > BUSY:
            return ("Twice the ingress processes: up to 100 % more tokens/s.",)
        if busy > BUSY and not self._keeps_up(requests_per_s):
            return ("Twice the replicas: up to 100 % more requests/s.",)
        return ()

    def _start(self, cold_s: float) -> Table:
        rows: list[tuple[str, float]] = []
        cold, decoder = self.app.cold_start, self.app.decoder
        if cold is not None:
            rows = [
                ("process, imports, health", cold.process_s),
                ("weights", cold.load_s(decoder)),
                ("torch.compile", cold.compile_layer_s * decoder.layers),
                ("graphs", cold.graphs_layer_s * decoder.layers),
                ("profile, cache", cold.profile_s),
            ]
        columns: tuple[tuple[str, Unit], ...] = (("phase", "text"), ("time", "seconds"))
        what = "all replicas" if rows else "all replicas, warm (`cold_start: {}` has them load)"
        return Table(title="cold start", columns=columns, rows=(*rows, (what, cold_s)))

    def _cut(self, served: list[Served]) -> tuple[PlannerWarning, ...]:
        """That many requests are longer than the engine takes."""
        most = self.load.max_model_len
        if most is None:
            return ()
        lengths = [s.request.prompt_tokens + s.request.output_tokens for s in served]
        share = sum(length >= most for length in lengths) / len(lengths)
        if share <= MANY_CUT:
            return ()
        cause = f"{share:.0%} of the requests are longer than max_model_len {most:,}; they are cut "
        return (
            PlannerWarning(
                code="llm-too-long", cause=f"{cause}to it here, vLLM refuses such prompts.",
                fix="Raise max_model_len, or give the load shorter prompts and outputs.",
            ),
        )  # fmt: skip

    def _warnings(self, loop: float, preempted: float) -> tuple[PlannerWarning, ...]:
        app = self.app
        found = []
        if loop > BUSY:
            found.append(
                PlannerWarning(
                    code="llm-ingress-bound",
                    cause=f"{app.ingress.replicas} ingress processes are busy {loop:.0%} of the "
                    f"time, at {app.ingress.token_s * 1e6:.0f} us per token.",
                    fix="Raise the ingress deployment's num_replicas, or stream in larger chunks.",
                )
            )
        if preempted > MANY_PREEMPTED:
            found.append(
                PlannerWarning(
                    code="llm-preempted",
                    cause=f"{preempted:.0%} of the requests lose their cache and start over.",
                    fix="Lower max_num_seqs, raise tensor_parallel_size, or use an fp8 cache.",
                )
            )
        if app.cold_start is not None:
            cold_s = app.cold_start.seconds(app.decoder, eager=app.engine.enforce_eager)
            if cold_s > SLOW_START_S:
                found.append(
                    PlannerWarning(
                        code="llm-cold-start",
                        cause=f"A replica takes {cold_s:.0f} s to start, more than any of Serve's "
                        "upscaling delays (30 s).",
                        fix="Keep replicas warm for bursts; load sharded states from a disk.",
                    )
                )
        return tuple(found)


def _memory(replicas: Replicas) -> Table:
    c = replicas.capacity
    assert c is not None, "served without an engine"
    cache = c.blocks * c.block_size * c.kv_bytes_per_token
    rows: tuple[tuple[str, float], ...] = (
        ("weights", c.weights_bytes), ("activations, graphs", c.working_bytes),
        (f"keys and values, {c.tokens:,} tokens", cache),
    )  # fmt: skip
    return Table(title="memory of a GPU", columns=(("what", "text"), ("size", "bytes")), rows=rows)


_INPUTS = (
    ITERATIONS,
    Input(name="ingress, per streamed token", value=f"{TOKEN_S * 1e6:.0f} us", basis="measured",
          source="anyscale/serve-performance-blog, one ingress"),
    Input(name="CUDA's libraries beside activations", value=format_bytes(LIBRARIES_BYTES),
          basis="measured", source="vLLM's log of gpt-oss-20b on one A100"),
)  # fmt: skip
