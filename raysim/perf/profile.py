"""Profiles: a few named constants of one machine, measured there, in place of raysim's own.

A constant is a field of ``RayCosts`` (section ``ray``), or of ``TrainingConstants`` or one of
``DATASHEET`` (section ``training``). What a profile leaves out stays as it is. The file itself is
read by ``scenario.profile``; ``calibrate`` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from raysim.hardware.specs import Provenance
from raysim.perf.constants import TrainingConstants
from raysim.perf.ray_core import RayCosts

SectionName = Literal["ray", "training"]

DATASHEET: Mapping[str, tuple[Literal["nic", "gpu"], str]] = {
    "network_latency_s": ("nic", "latency_s"),
    "network_efficiency": ("nic", "efficiency"),
    "pcie_bytes_per_s": ("gpu", "pcie_bytes_per_s"),
    "context_bytes": ("gpu", "context_bytes"),
    **{
        name: ("gpu", name)
        for name in (
            "memory_bytes_per_s", "product_flops_per_s", "optimizer_bytes_per_s",
            "optimizer_far_bytes_per_s", "dispatch_s",
            "gloo_latency_s", "gloo_bytes_per_s", "gloo_staging_bytes_per_s",
            "gloo_fresh_bytes_per_s",
        )
    },
}  # fmt: skip
"""Constants of section ``training`` that stand in a datasheet: the part, and its field; those of
the last group in a rank's on the CPU alone, but for ``memory_bytes_per_s``."""
_UNITS = (
    ("_bytes_per_s", "bytes/s"), ("_flops_per_s", "flop/s"), ("_bytes", "bytes"), ("_ns", "ns"),
    ("_s", "s"),
)  # fmt: skip
FAR = 30.0
"""A constant this many times its prior is not the same thing any more."""
EIGHTY_PERCENT = 1.2816
"""Standard deviations either side that hold 8 of 10 of a normal distribution."""
_AT_MOST_ONE = ("_share", "_frac", "_efficiency", "_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number and where it is from."""

    value: float
    unit: str
    """ns, s, bytes, bytes/s, or 1 for a share."""
    prior: float | None = None
    """What it was before; None: raysim has no number of its own that would hold everywhere."""
    lower: float = 0.0
    upper: float = float("inf")
    """Bounds of what is physically possible."""
    error: float | None = None
    """Standard error as a share of the value; None: unknown."""
    source: str = ""
    rows: tuple[str, ...] = ()
    """The measured rows it was taken from or fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Constants by section and name."""

    name: str
    made: str = ""
    """Date."""
    source: str = ""
    spread: float | None = None
    """Standard deviation of ``ln(predicted / measured)`` over the rows it was fitted on, degrees of
    freedom taken off: how far a prediction may be off. None: nobody knows."""
    ray: Mapping[str, Constant] = field(default_factory=dict)
    training: Mapping[str, Constant] = field(default_factory=dict)

    def interval(self, predicted: float) -> tuple[float, float]:
        """In which 8 of 10 measured values should lie; from below, then from above.

        Raises
        ------
        ValueError
            The profile does not say how far it may be off.
        """
        if self.spread is None:
            raise ValueError(f"profile {self.name} has no spread")
        factor = math.exp(EIGHTY_PERCENT * self.spread)
        return predicted / factor, predicted * factor

    def ray_costs(self) -> RayCosts:
        """raysim's own with this profile's values."""
        return costs_with({name: constant.value for name, constant in self.ray.items()})

    def training_constants(self) -> TrainingConstants:
        """raysim's own with this profile's values."""
        said = {n: c.value for n, c in self.training.items() if n not in DATASHEET}
        return TrainingConstants(**said)

    def provenance(self, constant: Constant) -> Provenance:
        """Of one of its constants, for reports."""
        said = f"profile {self.name}" + f": {constant.source}" * bool(constant.source)
        return Provenance(basis="measured" if constant.rows else "assumed", source=said)


OWN = Profile(name="raysim's own")
"""No constant but raysim's own."""


def costs_with(values: Mapping[str, float]) -> RayCosts:
    """raysim's own with some service times replaced, by name.

    ``core_speed`` changes every time that is not among them.
    """
    base = RayCosts()
    if "core_speed" in values:
        base = base.at_speed(values["core_speed"])
    said: dict[str, Any] = {name: as_field(getattr(base, name), v) for name, v in values.items()}
    return replace(base, **said)


def known(section: SectionName) -> dict[str, float | None]:
    """Every constant of a section, with raysim's own value where it has one (0 is none)."""
    own: Any = RayCosts() if section == "ray" else TrainingConstants()
    values = {f.name: getattr(own, f.name) or None for f in fields(own)}
    return values if section == "ray" else {**values, **dict.fromkeys(DATASHEET)}


def as_field(own: float, value: float) -> float:
    """``value`` as the field that holds ``own`` takes it: whole where that is."""
    return max(1, round(value)) if isinstance(own, int) else value


def unit_of(name: str) -> str:
    """The unit that a constant's name ends in; 1 for a share."""
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "1")


def bounds_of(name: str, prior: float | None) -> tuple[float, float]:
    """What is possible, when nobody says: ``FAR`` around the prior; shares up to 1."""
    least, most = (0.0, float("inf")) if prior is None else (prior / FAR, prior * FAR)
    return least, min(1.0, most) if name.endswith(_AT_MOST_ONE) else most
