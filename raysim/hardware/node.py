"""A node: its GPUs, cores, memory, disks and ports, which fail and come back together.

Real counterpart: one machine or instance, or one of several raylets on it (``host``). Cores are a
shared server of what the vCPUs that Ray counts are worth (``cores.py``); the memory bus is a link
of the topology, so copies to GPUs, network traffic through host memory and the CPU's own work (Adam
on the host, say) share it.

Not modelled: NUMA distance, caches, frequency under load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from raysim.hardware.device import Gpu, MemoryLedger
from raysim.hardware.host import Host
from raysim.hardware.maxmin import Flow, Loads
from raysim.hardware.server import Share, SharedServer
from raysim.hardware.topology import Link, Topology
from raysim.hardware.transfer import Network
from raysim.kernel.component import NodeDied
from raysim.kernel.simulation import Simulation


class LinkServer:
    """A link used as a shared server: same call as ``SharedServer.job``, in bytes."""

    def __init__(self, network: Network, link: Link) -> None:
        self.link = link
        self._network = network
        self._loads = Loads(((link, 1.0),))

    def job(
        self,
        size_bytes: float,
        then: Callable[[Any], object],
        arg: Any = None,
        *,
        max_bytes_per_s: float = math.inf,
        failed: Callable[[Any, Any], object] | None = None,
    ) -> Flow:
        """Move ``size_bytes`` over the link, then ``then(arg)``."""
        return self._network.start(
            self._loads,
            size_bytes,
            max_bytes_per_s=max_bytes_per_s,
            then=then,
            arg=arg,
            failed=failed,
        )


class Node:
    """One host of a cluster, by its index in ``ClusterSpec.nodes``."""

    def __init__(
        self,
        sim: Simulation,
        network: Network,
        topology: Topology,
        index: int,
        host: Host,
        *,
        shared: bool = False,
    ) -> None:
        self.index = index
        self.name = f"node-{index}"
        self.spec = spec = topology.specs[index]
        self.gpus = [Gpu(spec.gpu, (index, i)) for i in range(spec.gpu_count)] if spec.gpu else []
        self.topology = topology
        """Of the whole cluster, for routes from here."""
        self.host = host
        self.cpu: SharedServer | Share = Share(host.cpu) if shared else host.cpu
        """Core-seconds; a job's ``width`` is its threads."""
        load = host.load
        self.starting = self.cpu if load is None else Share(load.starting)
        """The same of processes that start: they are before others where cores are few."""
        self.memory = LinkServer(network, topology.node(index).memory)
        """Bytes over the memory bus, read and written together."""
        self.ledger = MemoryLedger((self.name, "host"))
        """Host memory by category; ``spec.memory_bytes`` is what there is."""
        self.disks = [disk.shared() for disk in host.disks] if shared else host.disks
        links = topology.node(index)
        self.nics = list(zip(links.nic_out, links.nic_in, strict=True))
        """(out, in) link of each port."""
        self.failure: Any = None
        """Why it is gone; None while it is up."""
        self._sim = sim
        self._network = network
        self._links = topology.node_links

    def fail(self, cause: Any = None) -> None:
        """Die: jobs on its cores and disks and flows over its links end with the cause.

        The cause is a ``NodeDied`` unless another is given; work started here later ends with it
        too. Failing twice does nothing.
        """
        if self.failure is not None:
            return
        self.failure = NodeDied(address=self.name, node=self.name) if cause is None else cause
        for gpu in self.gpus:
            gpu.fail(self.failure)
        self.cpu.fail(self.failure)
        self.starting.fail(self.failure)
        for disk in self.disks:
            disk.server.fail(self.failure)
        for link in self._links(self.index):
            self._network.fail_link(link, self.failure)

    def restore(self) -> None:
        """Come back, empty: as after a reboot, with nothing in memory."""
        if self.failure is None:
            return
        self.failure = None
        now_ns = self._sim.now_ns
        self.cpu.restore()
        self.starting.restore()
        self.ledger.clear(now_ns)
        for gpu in self.gpus:
            gpu.restore(now_ns)
        for disk in self.disks:
            disk.server.restore()
        for link in self._links(self.index):
            self._network.restore(link)


def make_nodes(
    sim: Simulation, network: Network, topology: Topology, host_of: tuple[int, ...] | None = None
) -> list[Node]:
    """Every node of the topology, in its order; ``host_of`` as in ``ClusterSpec``."""
    specs = topology.specs
    if host_of is None:
        hosts = [Host(sim, spec, f"node-{i}", contended=False) for i, spec in enumerate(specs)]
        return [Node(sim, network, topology, i, host) for i, host in enumerate(hosts)]
    assert len(host_of) == len(specs), f"{len(host_of)} hosts for {len(specs)} nodes"
    machines: dict[int, Host] = {}
    for number, spec in zip(host_of, specs, strict=True):
        if number not in machines:
            machines[number] = Host(sim, spec, f"host-{number}", contended=True)
    return [
        Node(sim, network, topology, i, machines[number], shared=True)
        for i, number in enumerate(host_of)
    ]
