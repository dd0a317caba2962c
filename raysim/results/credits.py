"""What the report says of network credits that a job uses up."""

from __future__ import annotations

from typing import Any

from raysim.units import format_seconds
from raysim.workloads.train_run import JobOutcome


def credits_part(outcome: JobOutcome) -> dict[str, Any]:
    """Of a job that sends more than its NICs' baseline; {} of others."""
    throttle = outcome.throttle
    if throttle is None:
        return {}
    node = outcome.step.comms.topology.specs[0]
    most, least = (
        f"{rate * 8 / 1e9:g} Gb/s" for rate in (node.nic.bytes_per_s, throttle.baseline_bytes_per_s)
    )
    text = (
        f"up to {most}, {least} guaranteed: after some {format_seconds(throttle.after_s)} "
        f"of training {node.name} has no more credits, and a step takes "
        f"{format_seconds(throttle.step_s)}"
    )
    return {
        "network_credits": {
            "guaranteed_bytes_per_s": throttle.baseline_bytes_per_s,
            "after_seconds": throttle.after_s,
            "step_seconds": throttle.step_s,
            "text": text,
        }
    }
