"""A checkpoint on its way: GPU, PCIe, one thread per rank, disk or shared store, as fair flows.

Each rank's bytes are one flow over the links they use: PCIe to main memory (shared per switch),
main memory, and the node's disk, or the host's NIC and the shared store. ``torch.save`` copies a
tensor to main memory and then writes it, one after the other in one thread: that bounds a flow.
Max-min shares (``hardware/maxmin.py``) do the rest.

Not modelled: the page cache on the way out (a write ends on the disk), metadata operations, other
jobs on a shared store, NUMA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from raysim.hardware.network import FlowNetwork
from raysim.hardware.node_links import Link
from raysim.hardware.specs import Provenance, SharedStorageSpec
from raysim.kernel.simulation import Simulation
from raysim.perf.host import pageable_bytes_per_s
from raysim.training.communicators import Communicators
from raysim.units import to_seconds

SAVE_BYTES_PER_S = 0.97e9
LOAD_BYTES_PER_S = 1.17e9
PROVENANCE = {
    "torch.save": Provenance(
        basis="measured",
        source="one thread of torch 2.13 writing 512 MiB of fp32 to memory, zip records with their "
        "CRC-32, on a Xeon in a virtual machine, 2026-11 (validation/data/checkpoints); 2.3 GB/s "
        "without the CRC",
    ),
    "torch.load": Provenance(
        basis="measured", source="the same, reading it back (validation/data/checkpoints)"
    ),
}

Way = Literal["save", "load", "copy", "write"]
"""``copy``: GPU to pinned memory only; ``write``: main memory to storage only."""


@dataclass(slots=True)
class Haul:
    """What one rank moves."""

    rank: int
    thread_bytes: float = 0.0
    """Through pickle."""
    device_bytes: float = 0.0
    """Over PCIe."""
    stored_bytes: float = 0.0
    """To or from storage; less than ``thread_bytes`` where others of the node read the same."""


class Traffic:
    """Links of the nodes that take part, and the time it takes."""

    def __init__(self, comms: Communicators, storage: SharedStorageSpec | None) -> None:
        self.comms = comms
        self.storage = storage
        self._disks: dict[tuple[int, Way], tuple[Link, ...]] = {}
        self._store: dict[Way, Link] = {}

    def seconds(self, hauls: Iterable[Haul], way: Way) -> float:
        """From the first byte of anyone to the last."""
        simulation = Simulation()
        network = FlowNetwork(simulation, self.comms.topology)
        ends: list[int] = []
        distinct, share = self._distinct(list(hauls))
        if way != "copy":
            self._divide(way, share)
        for haul in distinct:
            size = haul.device_bytes if way == "copy" else haul.thread_bytes
            if size <= 0:
                continue
            network.start(
                self._loads(haul, size, way), size, max_bytes_per_s=self._most(haul, size, way),
                then=lambda _: ends.append(simulation.now_ns),
            )  # fmt: skip
        simulation.run()
        return to_seconds(max(ends, default=0))

    def _divide(self, way: Way, nodes: int) -> None:
        """Give the shared store's link a part of its rate, where one node stands for so many."""
        if self.storage is not None:
            load = way == "load"
            whole = self.storage.read_bytes_per_s if load else self.storage.write_bytes_per_s
            self._store[way] = Link(f"{self.storage.name}/{way}", whole / nodes)
            self._disks.clear()

    def _distinct(self, hauls: list[Haul]) -> tuple[list[Haul], int]:
        """One of each sort of nodes, where nodes share nothing or all are alike; for how many."""
        nodes: dict[int, list[Haul]] = {}
        for haul in hauls:
            nodes.setdefault(self.comms.placement[haul.rank][0], []).append(haul)
        kinds: dict[tuple[object, ...], list[Haul]] = {}
        for node, inside in nodes.items():
            key = (self.comms.topology.specs[node].name, *(
                (self.comms.placement[h.rank][1], h.thread_bytes, h.device_bytes, h.stored_bytes)
                for h in inside
            ))  # fmt: skip
            kinds.setdefault(key, inside)
        if self.storage is not None and (
            len(kinds) > 1 or self._meets_others(next(iter(nodes), 0))
        ):
            return hauls, 1
        alike = len(nodes) if len(kinds) == 1 else 1
        return [haul for inside in kinds.values() for haul in inside], alike

    def _meets_others(self, node: int) -> bool:
        """Whether its way to a shared store has links of the fabric, before the store's own."""
        path = self.comms.topology.path(("host", node), ("storage",))
        own = f"node-{node}/"
        return any(not x.name.startswith(own) for x in path if math.isfinite(x.bytes_per_s))

    def _loads(self, haul: Haul, size: float, way: Way) -> list[tuple[Link, float]]:
        node, gpu = self.comms.placement[haul.rank]
        path = self.comms.topology.path
        ends = (("host", node), ("gpu", node, gpu))
        loads: list[tuple[Link, float]] = []
        if way != "write" and haul.device_bytes:
            route = path(*ends) if way == "load" else path(*reversed(ends))
            loads += [(link, haul.device_bytes / size) for link in route]
        if way != "copy":
            loads += [(link, haul.stored_bytes / size) for link in self._stored(node, way)]
        return loads

    def _stored(self, node: int, way: Way) -> tuple[Link, ...]:
        """Links between a host and where checkpoints are."""
        known = self._disks.get((node, way))
        if known is not None:
            return known
        spec, store, load = self.comms.topology.specs[node], self.storage, way == "load"
        ends = (("host", node), ("storage",))
        over = self.comms.topology.path(*(reversed(ends) if load else ends))
        if store is None and spec.disks:
            disk = spec.disks[0][0]
            rate = disk.read_bytes_per_s if load else disk.write_bytes_per_s
            over = (self.comms.topology.node(node).memory, Link(f"node-{node}/disk", rate))
        elif store is not None:
            each = store.node_read_bytes_per_s if load else store.node_write_bytes_per_s
            over = (*over, Link(f"node-{node}/{store.name}", each), self._store[way])
        self._disks[node, way] = tuple(link for link in over if math.isfinite(link.bytes_per_s))
        return self._disks[node, way]

    def _most(self, haul: Haul, size: float, way: Way) -> float:
        """Bytes per second that one thread reaches, alone."""
        gpu = self.comms.topology.specs[self.comms.placement[haul.rank][0]].gpu
        assert gpu is not None, f"rank {haul.rank} has no GPU"
        if way == "copy":
            return gpu.pcie_bytes_per_s
        pickled = LOAD_BYTES_PER_S if way == "load" else SAVE_BYTES_PER_S
        seconds = size / pickled
        if way != "write":
            seconds += haul.device_bytes / pageable_bytes_per_s(gpu)
        most = size / seconds
        store = self.storage
        if store is None:
            return most
        stream = store.stream_read_bytes_per_s if way == "load" else store.stream_write_bytes_per_s
        return min(most, stream)
