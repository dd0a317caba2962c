"""What network ports carried over time, in a bounded number of bins.

A transfer's bytes are spread evenly from its start to its end, whatever its rate did in between.
"""

from __future__ import annotations

from typing import NamedTuple

from raysim.hardware.maxmin import Flow
from raysim.hardware.topology import Link
from raysim.kernel.sampler import SpreadBins


class PortUse(NamedTuple):
    """One direction of one port."""

    node: str
    port: str
    way: str
    """``in`` or ``out``."""
    bytes_per_s: float
    """That it can carry."""
    bin_ns: int
    carried_bytes: tuple[float, ...]
    """In each bin from 0 on."""


class PortHistory:
    """Listens to a network (``FlowNetwork.moved``)."""

    def __init__(self) -> None:
        self._bins: dict[Link, SpreadBins | None] = {}

    def __call__(self, flow: Flow, now_ns: int) -> None:
        """A flow leaves its links."""
        moved = flow.size - flow.remaining
        if moved <= 0:
            return
        for link, load in flow.loads.links.items():
            if link not in self._bins:
                self._bins[link] = SpreadBins() if _is_port(link.name) else None
            bins = self._bins[link]
            if bins is not None:
                bins.add(load * moved, min(flow.start_ns, now_ns), now_ns)

    def uses(self) -> tuple[PortUse, ...]:
        """Of every port that carried anything, in order of first use."""
        found = []
        for link, bins in self._bins.items():
            if bins is not None:
                node, port, way = link.name.split("/")
                found.append(
                    PortUse(node, port, way, link.bytes_per_s, bins.width_ns, tuple(bins.amounts))
                )
        return tuple(found)


def _is_port(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and "nic" in parts[1] and parts[2] in {"in", "out"}
