"""What the vCPUs of a machine do: on most, two of them are threads of one core.

Real counterpart: simultaneous multithreading (Intel's Hyper-Threading, AMD's SMT) under Linux's
scheduler, which gives a thread an idle core before it puts two on one. Threads at work do as much
as so many cores until each core has one; every further thread then adds less than a core, up to
what all cores do with all their threads. What is measured "per core" is of a thread that has its
core to itself.

Not modelled: which work doubles up well (what waits for memory gains most, dense arithmetic
nothing), turbo clocks that fall as more cores work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from raysim.hardware.specs import NodeSpec, Provenance

SMT_YIELD = 1.3
"""What the threads of one core do together, over one of them alone."""
SMT_PROVENANCE = Provenance(
    basis="assumed",
    source="Marr et al., Hyper-Threading Technology Architecture and Microarchitecture, Intel "
    "Technology Journal 6(1), 2002: 1.16 to 1.28 in servers, up to 1.3; the same for all",
)


class Doubling(NamedTuple):
    """How work grows once every core has a thread."""

    gain: float
    """Of a core, what each further thread adds."""
    lone_frac: float
    """Work that the line through both ends starts from, over what all threads do."""

    def each(self, even: float) -> float:
        """What a thread does where all that can be done, divided evenly, were ``even``."""
        return min(even, self.gain + self.lone_frac * even)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of one machine, or of several together."""

    vcpus: float
    cores: float
    most: float
    """Cores' worth of work, per second, of all vCPUs together."""

    @property
    def doubling(self) -> Doubling | None:
        """None: every vCPU is a core."""
        further = self.vcpus - self.cores
        if not further:
            return None
        gain = (self.most - self.cores) / further
        return Doubling(gain, self.cores * (1.0 - gain) / self.most)

    def of(self, threads: float) -> float:
        """Cores' worth of work of so many threads, spread evenly."""
        if threads <= self.cores:
            return threads
        even = self.most / threads
        return threads * (even if self.doubling is None else self.doubling.each(even))

    def __str__(self) -> str:
        """``16 vCPUs are 8 cores of 2 threads: 10.4 cores' worth when all are busy``."""
        each = self.vcpus / self.cores
        return (
            f"{self.vcpus:g} vCPUs are {self.cores:g} cores of {each:g} threads: {self.most:g} "
            "cores' worth when all are busy"
        )


def capacity_of(node: NodeSpec) -> Capacity:
    """Of a node; one whose vCPUs do not fill a core has the share that neighbours leave it."""
    threads = node.cpu.threads_per_core
    cores = node.vcpus / threads
    worth = cores if threads == 1 else cores * SMT_YIELD
    return Capacity(vcpus=float(node.vcpus), cores=cores, most=worth)


def together(capacities: Iterable[Capacity]) -> Capacity:
    """Of all of them."""
    parts = list(capacities)
    return Capacity(
        vcpus=sum(part.vcpus for part in parts),
        cores=sum(part.cores for part in parts),
        most=sum(part.most for part in parts),
    )
