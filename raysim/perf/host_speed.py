"""What things cost the host of a run: raysim's or a profile's constants, at its CPU's speed."""

from __future__ import annotations

from dataclasses import fields

from raysim.hardware.specs import CpuSpec
from raysim.perf import host
from raysim.perf.constants import TrainingConstants


def host_costs(given: TrainingConstants, cpu: CpuSpec | None = None) -> host.HostCosts:
    """What things cost the host that ``cpu`` stands in; None: the host they were measured on."""
    costs = host.HostCosts(**{f.name: getattr(given, f.name) for f in fields(host.HostCosts)})
    speed = given.host_speed
    if speed is None:
        speed = 1.0 if cpu is None else cpu.single_thread / host.REFERENCE_SINGLE_THREAD
    return costs if speed == 1.0 else costs.at_speed(speed)
