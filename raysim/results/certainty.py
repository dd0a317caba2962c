"""What a simulated job is like, and the interval that past errors on such jobs give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.hardware.catalog import left_to
from raysim.perf import tables
from raysim.perf.borrowed import measured_system
from raysim.perf.uncertainty import COVERS, SHARE, Bound, Features, Interval, interval, standing
from raysim.training.tower import StepOutcome

_NETWORK = ("exposed_collectives", "pipeline_transfers")
_HOST = ("launch", "offload", "data_wait")


def features(step: StepOutcome) -> Features:
    """Of a simulated optimizer step."""
    plan, gpu = step.plan, step.costs.gpu
    parts = step.breakdown
    network, host = (
        sum(parts.parts_ns[key] for key in keys) / parts.step_ns for keys in (_NETWORK, _HOST)
    )
    bound: Bound = "kernels"
    if max(network, host) > SHARE:
        bound = "network" if network > host else "host"
    places = step.comms.placement[: plan.mesh.world]
    nodes = len({node for node, _ in places})
    return Features(
        gpu=gpu.name,
        architecture=gpu.architecture,
        tables=_tables(step),
        engine=_engine(step),
        nodes=nodes,
        gpus=plan.mesh.world,
        network=step.comms.topology.specs[places[0][0]].nic.kind if nodes > 1 else "none",
        bound=bound,
        parameters=float(plan.model.num_parameters),
        seq_len=plan.model.seq_len,
    )


def _tables(step: StepOutcome) -> Any:
    """``measured``: this GPU's products and attention both are, used or not; V100 lacks these."""
    gpu = step.costs.gpu
    if gpu.architecture == "cpu":
        return "cpu"
    origins = step.costs.provenance
    own = [o.basis == "measured" for name, o in origins.items() if name.startswith("gemm")]
    attention = measured_system(gpu)[0] in tables.systems("attention")
    return "measured" if own and all(own) and attention else "borrowed"


def _engine(step: StepOutcome) -> str:
    plan = step.plan
    if plan.engine != "deepspeed":
        return plan.engine
    zero = plan.zero
    away = zero.offload_optimizer.device != "none" or zero.offload_param.device != "none"
    return f"zero-{zero.stage}{'-offload' if away else ''}"


def certainty(step: StepOutcome, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The ``certainty`` part of a summary: where nine of ten measured values would lie.

    ``summary`` has ``step``, ``throughput`` and ``memory``. An interval need not hold the
    prediction itself: where past predictions were too low, it lies above.
    """
    own = features(step)
    stood = standing(own)
    time, memory = (interval(own, quantity) for quantity in ("time", "memory"))
    return {
        "standing": stood.standing,
        "reasons": [*stood.reasons, *_described(step)],
        "covers": COVERS,
        "step_seconds": _said(time, summary["step"]["seconds"]),
        "tokens_per_s": _rate(time, summary["throughput"]["tokens_per_s"]),
        "samples_per_s": _rate(time, summary["throughput"]["samples_per_s"]),
        "memory_peak_bytes": _said(memory, summary["memory"]["peak_bytes"]),
    }


def _described(step: StepOutcome) -> list[str]:
    """That a GPU's numbers are somebody's, and the rest another GPU's."""
    whose = left_to(step.costs.gpu)
    return [f"its numbers are the scenario's, what they leave out {whose[0]}'s"] if whose else []


def without(said: dict[str, Any], why: str) -> dict[str, Any]:
    """The same with no interval, because past errors are of other constants."""
    none = dict.fromkeys(
        ("step_seconds", "tokens_per_s", "samples_per_s", "memory_peak_bytes"), None
    )
    return {**said, **none, "standing": "guessed", "reasons": [why]}


def _said(found: Interval | None, predicted: float) -> dict[str, Any] | None:
    if found is None:
        return None
    low, high = found.around(predicted)
    return {
        "low": low, "high": high, "kind": found.said, "rows": found.rows, "key": list(found.kind),
    }  # fmt: skip


def _rate(found: Interval | None, predicted: float | None) -> dict[str, Any] | None:
    """A rate is low where the step is long."""
    if found is None or predicted is None:
        return None
    low, high = predicted / found.high, predicted / found.low
    return {"low": low, "high": high, "kind": found.said, "rows": found.rows}
