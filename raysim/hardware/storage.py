"""Disks and object storage as servers of bandwidth and operations, with a latency.

Real counterparts: instance NVMe, EBS and network volumes (limits of bytes and of operations per
second, whichever binds); S3, GCS and Azure Blob as boto3's transfer manager uses them.

A disk's time is one server: an operation takes its share of a second of the device, the larger of
bytes over bandwidth and operations over IOPS, so readers and writers slow each other.

Not modelled: burst credits, write-back caches, the page cache, space on the device, queue depths,
objects that are not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from raysim.hardware.server import Share, SharedServer
from raysim.hardware.specs import DiskSpec, ObjectStorageSpec
from raysim.hardware.topology import Topology, Vertex, latency_s
from raysim.hardware.transfer import Network
from raysim.kernel.simulation import Simulation
from raysim.units import KIB, MIB, NS_PER_S, to_ns

OPERATION_BYTES = 256 * KIB
"""Largest single operation of an SSD volume (Amazon EBS User Guide, I/O characteristics)."""

PART_BYTES = 8 * MIB
"""boto3 TransferConfig: multipart_chunksize."""

CONNECTIONS = 10
"""boto3 TransferConfig: max_concurrency."""

Then = Callable[[Any], object]
Failed = Callable[[Any, Any], object]


class Disk:
    """One disk or volume of a node."""

    def __init__(
        self, sim: Simulation, spec: DiskSpec, name: str, server: SharedServer | Share | None = None
    ) -> None:
        self.sim = sim
        self.spec = spec
        self.name = name
        self.server = SharedServer(sim, name, 1.0) if server is None else server
        """Seconds of the device."""
        self.read_bytes = 0.0
        self.written_bytes = 0.0

    def shared(self) -> Disk:
        """The same device as another node of its machine sees it; the two fail one by one."""
        server = self.server.whole if isinstance(self.server, Share) else self.server
        return Disk(self.sim, self.spec, self.name, Share(server))

    def read(
        self,
        size_bytes: float,
        then: Then,
        arg: Any = None,
        *,
        operations: int | None = None,
        failed: Failed | None = None,
    ) -> None:
        """Read, then ``then(arg)``; ``operations`` defaults to as few as the size allows."""
        self.read_bytes += size_bytes
        spec = self.spec
        count = operations or math.ceil(size_bytes / OPERATION_BYTES)
        busy_s = max(size_bytes / spec.read_bytes_per_s, count / spec.read_iops)
        self.sim.call_later(to_ns(spec.latency_s), self._serve, (busy_s, then, arg, failed))

    def write(
        self,
        size_bytes: float,
        then: Then,
        arg: Any = None,
        *,
        operations: int | None = None,
        failed: Failed | None = None,
    ) -> None:
        """Write, then ``then(arg)``; as ``read``."""
        self.written_bytes += size_bytes
        spec = self.spec
        count = operations or math.ceil(size_bytes / OPERATION_BYTES)
        busy_s = max(size_bytes / spec.write_bytes_per_s, count / spec.write_iops)
        self.sim.call_later(to_ns(spec.latency_s), self._serve, (busy_s, then, arg, failed))

    def _serve(self, request: tuple[float, Then, Any, Failed | None]) -> None:
        busy_s, then, arg, failed = request
        self.server.job(busy_s, then, arg, failed=failed)


class ObjectStorage:
    """A bucket service that clients reach over the network.

    Requests are admitted at ``requests_per_s`` in order. A transfer is cut into parts that
    ``connections`` carry side by side: each part pays the service's latency, each connection has
    its own limit, and the client's links are shared with everything else there.
    """

    def __init__(
        self,
        sim: Simulation,
        spec: ObjectStorageSpec,
        network: Network,
        topology: Topology,
        *,
        part_bytes: float = PART_BYTES,
    ) -> None:
        self.sim = sim
        self.spec = spec
        self.part_bytes = part_bytes
        self._network = network
        self._topology = topology
        self._free_ns = 0.0

    def get(
        self,
        client: Vertex,
        size_bytes: float,
        then: Then,
        arg: Any = None,
        *,
        connections: int = CONNECTIONS,
        failed: Failed | None = None,
    ) -> None:
        """Fetch an object to ``client`` (such as ``("host", 3)``), then ``then(arg)``."""
        each = self.spec.read_bytes_per_s_per_connection
        ends: tuple[Vertex, Vertex] = (("storage",), client)
        self._transfer(ends, size_bytes, each, connections, (then, arg, failed))

    def put(
        self,
        client: Vertex,
        size_bytes: float,
        then: Then,
        arg: Any = None,
        *,
        connections: int = CONNECTIONS,
        failed: Failed | None = None,
    ) -> None:
        """Store an object from ``client``, then ``then(arg)``."""
        each = self.spec.write_bytes_per_s_per_connection
        ends: tuple[Vertex, Vertex] = (client, ("storage",))
        self._transfer(ends, size_bytes, each, connections, (then, arg, failed))

    def _transfer(
        self,
        ends: tuple[Vertex, Vertex],
        size_bytes: float,
        each_bytes_per_s: float,
        connections: int,
        end: tuple[Then, Any, Failed | None],
    ) -> None:
        parts = max(1, math.ceil(size_bytes / self.part_bytes))
        used = min(connections, parts)
        rounds = math.ceil(parts / used)
        path = self._topology.path(*ends)
        now_ns = self.sim.now_ns
        admitted_ns = max(float(now_ns), self._free_ns)
        self._free_ns = admitted_ns + parts / self.spec.requests_per_s * NS_PER_S
        wait_ns = math.ceil(admitted_ns) - now_ns
        then, arg, failed = end
        self._network.start(
            ((link, 1.0) for link in path),
            size_bytes,
            latency_ns=wait_ns + to_ns(rounds * self.spec.latency_s + latency_s(path)),
            max_bytes_per_s=used * each_bytes_per_s,
            then=then,
            arg=arg,
            failed=failed,
        )
