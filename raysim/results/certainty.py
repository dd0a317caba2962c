"""What a simulated job is like, and the interval that past errors on such jobs give it."""

from __future__ import annotations

from typing import Any

from raysim.perf.uncertainty import SHARE, Bound, Features, Interval, Quantity, interval, standing
from raysim.training.tower import StepOutcome

_NETWORK = ("exposed_collectives", "pipeline_transfers")
_HOST = ("launch", "offload", "data_wait")


def features(step: StepOutcome) -> Features:
    """Of a simulated optimizer step."""
    plan, gpu = step.plan, step.costs.gpu
    parts = step.breakdown()
    network, host = (
        sum(parts.parts_ns[key] for key in keys) / parts.step_ns for keys in (_NETWORK, _HOST)
    )
    bound: Bound = "kernels"
    if max(network, host) > SHARE:
        bound = "network" if network > host else "host"
    return Features(
        gpu=gpu.name,
        architecture=gpu.architecture,
        tables=_tables(step),
        engine=_engine(step),
        nodes=len({node for node, _ in step.comms.placement[: plan.mesh.world]}),
        gpus=plan.mesh.world,
        bound=bound,
        parameters=float(plan.model.num_parameters),
        seq_len=plan.model.seq_len,
    )


def _tables(step: StepOutcome) -> Any:
    if step.costs.gpu.architecture == "cpu":
        return "cpu"
    origins = step.costs.provenance
    own = [o.basis == "measured" for name, o in origins.items() if name.startswith("gemm")]
    return "measured" if own and all(own) else "borrowed"


def _engine(step: StepOutcome) -> str:
    plan = step.plan
    if plan.engine != "deepspeed":
        return plan.engine
    zero = plan.zero
    away = zero.offload_optimizer.device != "none" or zero.offload_param.device != "none"
    return f"zero-{zero.stage}{'-offload' if away else ''}"
