"""The links inside one node: scale-up fabric, PCIe tree, memory bus, NIC ports.

Real counterpart: what ``nvidia-smi topo -m`` and NCCL's ``src/graph/topo.cc`` see of one host.
Every link has one direction, but for the memory bus, which reads and writes share.

Capacities are what large transfers reach, so that concurrent users share what is really there:
NVLink at NCCL's own per-link figure, PCIe as a pinned copy achieves it (the datasheet gives it so),
NICs at line rate times ``NicSpec.efficiency``.

Traffic by way of host memory crosses its bus once per host: of writing and reading back, one is
spared by DMA into the last-level cache (Intel's Data Direct I/O).

Not modelled: NVLink bridges between pairs of PCIe cards, PCIe read/write turn-around, a second
memory controller per socket (one bus per host), NICs that hang under another socket's switch.
"""

from __future__ import annotations

from collections.abc import Iterator

from raysim.hardware.specs import GpuSpec, NodeSpec

Vertex = tuple[str | int, ...]
"""``("gpu", node, i)``, ``("host", node)``, ``("storage",)`` at the ends; switches between."""

GPUS_PER_SWITCH = 2
"""DGX A100 and DGX H100 user guides, system topology: two GPUs and two NICs per PCIe switch."""

# Share of an NVLink's 25 (Blackwell: 50) GB/s that NCCL counts on: src/graph/topo.h, SM70_ and
# SM80_NVLINK_BW 20.0, SM90_ 20.6, SM100_ 40.1. xGMI has no such figure; it takes the same 0.8.
_NVLINK_SHARE = {"volta": 20 / 25, "ampere": 20 / 25, "hopper": 20.6 / 25, "blackwell": 40.1 / 50}
_SCALE_UP_SHARE = 0.8

# Socket to socket, one direction: NCCL src/graph/topo.h, SKL_QPI_BW 10, AMD_BW 16 (Zen 1 and 2),
# SRP_QPI_BW 22 GB/s. The host CPU's generation is taken from that of its GPUs.
_SOCKET_BYTES_PER_S = {"volta": 10e9, "turing": 10e9, "ampere": 16e9}
_SOCKET_DEFAULT_BYTES_PER_S = 22e9

# A PCIe 6.0 GPU reaches a PCIe 6.0 NIC under the same switch at twice the 52 GB/s measured on 5.0
# (PCI-SIG: 6.0 doubles 5.0), though its host, still on 5.0, copies no faster than before.
_PCIE6_PORT_BYTES_PER_S = 104e9

# NCCL src/graph/tuning.cc, ring LL latency per hop: 0.6 us over NVLink, 1.0 us over PCIe. Two links
# make a hop.
_NVLINK_LATENCY_S = 0.3e-6
_PCIE_LATENCY_S = 0.5e-6

# DGX-1V and p3.16xlarge, NVLinks between pairs (hybrid cube mesh): the topology dump in NCCL issue
# 671. Its first 4 rows and columns are p3.8xlarge.
_CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


class Link:
    """One direction of one wire, bus or port; compared by identity."""

    __slots__ = ("bytes_per_s", "latency_s", "name")

    def __init__(self, name: str, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s

    def __repr__(self) -> str:
        return f"Link({self.name})"


def scale_up_bytes_per_s(gpu: GpuSpec) -> float:
    """What one GPU's scale-up ports carry in one direction, as NCCL counts them."""
    return gpu.scale_up_bytes_per_s * _NVLINK_SHARE.get(gpu.architecture, _SCALE_UP_SHARE)


def mesh_widths(gpu: GpuSpec, count: int) -> tuple[tuple[float, ...], ...]:
    """Links between each pair of ``count`` GPUs without a switch: cube mesh, or all to all."""
    if gpu.architecture == "volta" and gpu.scale_up_links == 6 and count <= 8:
        return tuple(row[:count] for row in _CUBE_MESH[:count])
    each = gpu.scale_up_links / max(1, count - 1)
    return tuple(tuple(0.0 if i == j else each for j in range(count)) for i in range(count))


class NodeLinks:
    """Links of one node, made when it is first touched; lists are indexed by GPU, switch or NIC."""

    __slots__ = (
        "host_in", "host_out", "index", "island", "memory", "mesh", "mesh_rows", "nic_in",
        "nic_out", "nics_of_gpu", "nvlink_in", "nvlink_out", "pcie_in", "pcie_out", "socket_in",
        "socket_out", "spec", "switch_down", "switch_of_nic", "switch_up", "switches",
    )  # fmt: skip

    def __init__(self, index: int, spec: NodeSpec, island: Vertex) -> None:
        self.index = index
        self.spec = spec
        self.island = island
        name = f"node-{index}"
        gpus = range(spec.gpu_count)
        self.switches = -(-spec.gpu_count // GPUS_PER_SWITCH)
        self.memory = Link(f"{name}/memory", spec.cpu.memory_bytes_per_s)
        rate = spec.nic.bytes_per_s * spec.nic.efficiency
        half_s = spec.nic.latency_s / 2
        self.nic_out = [Link(f"{name}/nic-{k}/out", rate, half_s) for k in range(spec.nic_count)]
        self.nic_in = [Link(f"{name}/nic-{k}/in", rate, half_s) for k in range(spec.nic_count)]
        self.host_out, self.host_in = self.nic_out[0], self.nic_in[0]
        if spec.host_nic is not None:
            rate = spec.host_nic.bytes_per_s * spec.host_nic.efficiency
            half_s = spec.host_nic.latency_s / 2
            self.host_out = Link(f"{name}/host-nic/out", rate, half_s)
            self.host_in = Link(f"{name}/host-nic/in", rate, half_s)
        self.switch_of_nic = [k * self.switches // spec.nic_count for k in range(spec.nic_count)]
        self.nics_of_gpu = [_nics_near(i, spec) for i in gpus]
        self.nvlink_out: list[Link] = []
        self.nvlink_in: list[Link] = []
        self.pcie_out: list[Link] = []
        self.pcie_in: list[Link] = []
        self.switch_up: list[Link] = []
        self.switch_down: list[Link] = []
        self.socket_out: list[Link] = []
        self.socket_in: list[Link] = []
        self.mesh: dict[tuple[int, int], Link] = {}
        self.mesh_rows: list[list[tuple[int, Link, float]]] = []
        if spec.gpu is not None:
            self._pcie_tree(name, spec, spec.gpu)
            if spec.gpu_fabric == "nvswitch":
                port = scale_up_bytes_per_s(spec.gpu)
                for side, links in (("out", self.nvlink_out), ("in", self.nvlink_in)):
                    links += [
                        Link(f"{name}/gpu-{i}/nvlink-{side}", port, _NVLINK_LATENCY_S) for i in gpus
                    ]
            elif spec.gpu_fabric == "nvlink_mesh":
                self._make_mesh(name, spec, spec.gpu)

    def _pcie_tree(self, name: str, spec: NodeSpec, gpu: GpuSpec) -> None:
        """GPU to switch at x16, switch to its socket at x16, socket to socket."""
        rate, latency_s = gpu.pcie_bytes_per_s, _PCIE_LATENCY_S
        port = max(rate, _PCIE6_PORT_BYTES_PER_S) if gpu.pcie_generation >= 6 else rate
        gpus, switches = range(spec.gpu_count), range(self.switches)
        self.pcie_out = [Link(f"{name}/gpu-{i}/pcie-out", port, latency_s) for i in gpus]
        self.pcie_in = [Link(f"{name}/gpu-{i}/pcie-in", port, latency_s) for i in gpus]
        self.switch_up = [Link(f"{name}/pcie-{s}/up", rate, latency_s) for s in switches]
        self.switch_down = [Link(f"{name}/pcie-{s}/down", rate, latency_s) for s in switches]
        cross = _SOCKET_BYTES_PER_S.get(gpu.architecture, _SOCKET_DEFAULT_BYTES_PER_S)
        sockets = range(spec.cpu.sockets if spec.cpu.sockets > 1 else 0)
        self.socket_out = [Link(f"{name}/socket-{s}/out", cross) for s in sockets]
        self.socket_in = [Link(f"{name}/socket-{s}/in", cross) for s in sockets]

    def _make_mesh(self, name: str, spec: NodeSpec, gpu: GpuSpec) -> None:
        """One link per connected pair and direction, as wide as its NVLinks together."""
        if not gpu.scale_up_links:
            raise ValueError(f"{spec.name}: gpu_fabric nvlink_mesh, but {gpu.name} has no NVLinks")
        each = scale_up_bytes_per_s(gpu) / gpu.scale_up_links
        for i, row in enumerate(mesh_widths(gpu, spec.gpu_count)):
            self.mesh_rows.append([])
            for j, width in enumerate(row):
                if width:
                    link = Link(f"{name}/nvlink-{i}-{j}", each * width, 2 * _NVLINK_LATENCY_S)
                    self.mesh[i, j] = link
                    self.mesh_rows[i].append((j, link, width))

    def socket_of_switch(self, switch: int) -> int:
        """Switches are dealt to sockets in order."""
        return switch * len(self.socket_out) // self.switches if self.socket_out else 0

    def pcie_between(self, a: int, b: int) -> tuple[Link, ...]:
        """From GPU ``a`` to GPU ``b`` through switches, host bridges and the socket link."""
        return (self.pcie_out[a], *self._between(a // GPUS_PER_SWITCH, b // GPUS_PER_SWITCH),
                self.pcie_in[b])  # fmt: skip

    def _between(self, a: int, b: int) -> tuple[Link, ...]:
        """From under PCIe switch ``a`` to under switch ``b``."""
        if a == b:
            return ()
        here, there = self.socket_of_switch(a), self.socket_of_switch(b)
        if here == there:
            return (self.switch_up[a], self.switch_down[b])
        return (self.switch_up[a], self.socket_out[here], self.socket_in[there],
                self.switch_down[b])  # fmt: skip

    def mesh_between(self, a: int, b: int) -> tuple[Link, ...]:
        """Fewest NVLink hops from ``a`` to ``b``, over the lowest-numbered relay; PCIe if none."""
        before = {a: -1}
        queue = [a]
        for i in queue:
            for j, _, _ in self.mesh_rows[i]:
                if j not in before:
                    before[j] = i
                    queue.append(j)
        if b not in before:
            return self.pcie_between(a, b)
        hops: list[Link] = []
        while b != a:
            hops.append(self.mesh[before[b], b])
            b = before[b]
        return tuple(reversed(hops))

    def gpu_to_host(self, gpu: int) -> tuple[Link, ...]:
        """Into this host's memory; pinned buffers are taken to be on the GPU's own socket."""
        return (self.pcie_out[gpu], self.switch_up[gpu // GPUS_PER_SWITCH], self.memory)

    def host_to_gpu(self, gpu: int) -> tuple[Link, ...]:
        """Out of this host's memory."""
        return (self.memory, self.switch_down[gpu // GPUS_PER_SWITCH], self.pcie_in[gpu])

    def gpu_to_nic(self, gpu: int, nic: int) -> tuple[Link, ...]:
        """To the NIC's port: GPUDirect RDMA when the NIC has it, else through host memory."""
        if not self.spec.nic.rdma:
            return (*self.gpu_to_host(gpu), self.nic_out[nic])
        switch = gpu // GPUS_PER_SWITCH
        return (self.pcie_out[gpu], *self._between(switch, self.switch_of_nic[nic]),
                self.nic_out[nic])  # fmt: skip

    def nic_to_gpu(self, nic: int, gpu: int) -> tuple[Link, ...]:
        """From the NIC's port; the mirror of ``gpu_to_nic``."""
        if not self.spec.nic.rdma:
            return (self.nic_in[nic], *self.host_to_gpu(gpu))
        switch = gpu // GPUS_PER_SWITCH
        return (self.nic_in[nic], *self._between(self.switch_of_nic[nic], switch),
                self.pcie_in[gpu])  # fmt: skip

    def host_to_nic(self) -> tuple[Link, ...]:
        """Host traffic leaves memory by the host's own NIC, or by NIC 0."""
        return (self.memory, *self._above(self.switch_down), self.host_out)

    def nic_to_host(self) -> tuple[Link, ...]:
        """Host traffic enters memory by the host's own NIC, or by NIC 0."""
        return (self.host_in, *self._above(self.switch_up), self.memory)

    def _above(self, switches: list[Link]) -> list[Link]:
        """The switch above NIC 0, where host traffic goes through one."""
        return switches[:1] if self.spec.nic.rdma and self.spec.host_nic is None else []

    def edges(self, port: list[Vertex], host_port: Vertex) -> Iterator[tuple[Vertex, Vertex, Link]]:
        """Every link with its ends; ``port[k]`` is the switch that NIC k is plugged into.

        ``host_port`` is that of the host's own NIC, if it has one.
        """
        n = self.index
        host: Vertex = ("host", n)
        for i, (out, into) in enumerate(zip(self.nvlink_out, self.nvlink_in, strict=True)):
            yield ("gpu", n, i), self.island, out
            yield self.island, ("gpu", n, i), into
        for (i, j), link in self.mesh.items():
            yield ("gpu", n, i), ("gpu", n, j), link
        for i, (out, into) in enumerate(zip(self.pcie_out, self.pcie_in, strict=True)):
            switch: Vertex = ("switch", n, i // GPUS_PER_SWITCH)
            yield ("gpu", n, i), switch, out
            yield switch, ("gpu", n, i), into
        for s, (up, down) in enumerate(zip(self.switch_up, self.switch_down, strict=True)):
            socket: Vertex = ("socket", n, self.socket_of_switch(s))
            yield ("switch", n, s), socket, up
            yield socket, ("switch", n, s), down
        for s, (out, into) in enumerate(zip(self.socket_out, self.socket_in, strict=True)):
            yield ("socket", n, s), ("interconnect", n), out
            yield ("interconnect", n), ("socket", n, s), into
        around: list[Vertex] = [host]
        around += [("socket", n, s) for s in range(max(1, len(self.socket_out)))]
        yield from ((u, v, self.memory) for u in around for v in around)
        for k, at in enumerate(self.switch_of_nic):
            side: Vertex = host
            if self.spec.nic.rdma:
                side = ("switch", n, at) if self.switches else ("socket", n, 0)
            yield side, port[k], self.nic_out[k]
            yield port[k], side, self.nic_in[k]
        if self.spec.host_nic is not None:
            yield host, host_port, self.host_out
            yield host_port, host, self.host_in


def _nics_near(gpu: int, spec: NodeSpec) -> tuple[int, ...]:
    """NICs that serve one GPU: its equal share of them, at least one (rail order)."""
    first = gpu * spec.nic_count // spec.gpu_count
    after = (gpu + 1) * spec.nic_count // spec.gpu_count
    return tuple(range(first, max(after, first + 1)))
