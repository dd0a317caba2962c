"""What is expected of the machines over a run: how GPUs vary, which nodes and links are slow.

``noise_at`` is what holds at one moment, for the steps to be played under; a link that is down lets
no step end and is an outage of the whole job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.specs import Provenance
from raysim.training.noise import Noise
from raysim.training.settings.parallel import Mesh

PROCESS_GROUP_TIMEOUT_S = 600.0
TRANSPORT_TIMEOUT_S = 4.096e-6 * 2**20 * (7 + 1)
PROVENANCE = {
    "process group timeout": Provenance(
        basis="datasheet", source="torch.distributed's default_pg_nccl_timeout: 10 minutes"
    ),
    "RDMA transport timeout": Provenance(
        basis="datasheet",
        source="InfiniBand: 4.096 us x 2^timeout before each of the retries; NCCL_IB_TIMEOUT 20, "
        "NCCL_IB_RETRY_CNT 7 (src/transport/net_ib/connect.cc)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a run, in seconds from its start."""

    from_s: float = 0.0
    for_s: float = math.inf

    @property
    def lasting(self) -> bool:
        """Whether it is the whole run."""
        return self.from_s == 0.0 and self.for_s == math.inf

    @property
    def until_s(self) -> float:
        """Its end."""
        return self.from_s + self.for_s

    def holds(self, at_s: float) -> bool:
        """Whether a moment lies in it."""
        return self.from_s <= at_s < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node that throttles, or shares its CPU."""

    node: int
    slowdown: float = 1.0
    """Kernels take so much longer."""
    host_slowdown: float = 1.0
    """So do Python, dispatch and the CPU optimizer."""
    window: Window = field(default_factory=Window)


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedLink:
    """NICs of a node at a share of their rate."""

    node: int
    nic: int | None = None
    """None: all of them."""
    share: float
    """0: down."""
    window: Window = field(default_factory=Window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How the machines of a job differ; not at all by default."""

    gpu_cv: float = 0.0
    step_cv: float = 0.0
    kernel_cv: float = 0.0
    """Looked at where every rank is; the expected step leaves it out."""
    slow_nodes: tuple[SlowNode, ...] = ()
    links: tuple[DegradedLink, ...] = ()
    timeout_s: float | None = None
    """How long a link may be down before the job fails; None: what its transport allows."""

    @property
    def alike(self) -> bool:
        """Whether nothing ever differs."""
        return (
            not (self.slow_nodes or self.links)
            and Noise(gpu_cv=self.gpu_cv, step_cv=self.step_cv).quiet
        )

    def noise_at(self, at_s: float | None, cluster: ClusterSpec) -> Noise:
        """What steps are played under at a moment; None: what holds for the whole run."""

        def holds(window: Window) -> bool:
            return window.lasting if at_s is None else window.holds(at_s)

        slow = [s for s in self.slow_nodes if holds(s.window)]
        links = [li for li in self.links if li.share > 0 and holds(li.window)]
        return Noise(
            gpu_cv=self.gpu_cv,
            step_cv=self.step_cv,
            kernel_cv=self.kernel_cv,
            kernels=_together((s.node, s.slowdown) for s in slow),
            hosts=_together((s.node, s.host_slowdown) for s in slow),
            links=tuple(
                (li.node, nic, li.share)
                for li in links
                if li.share < 1
                for nic in _nics(li, cluster)
            ),
        )

    def changes_s(self) -> list[float]:
        """Moments after which other things may hold, in order."""
        windows = [s.window for s in self.slow_nodes]
        windows += [li.window for li in self.links if li.share > 0]
        moments = {t for w in windows for t in (w.from_s, w.until_s) if 0 < t < math.inf}
        return sorted(moments)

    def outages(self, mesh: Mesh, cluster: ClusterSpec) -> list[tuple[Window, float]]:
        """When a link that the job needs is down, and how long it may be, in order.

        A job inside one node needs none.
        """
        nodes = _used(mesh, cluster)
        if len(nodes) < 2:
            return []
        down = [li for li in self.links if li.share == 0 and li.node in nodes]
        found = [(li.window, self._patience_s(li.node, cluster)) for li in down]
        return sorted(found, key=lambda outage: outage[0].from_s)

    def _patience_s(self, node: int, cluster: ClusterSpec) -> float:
        if self.timeout_s is not None:
            return self.timeout_s
        rdma = cluster.gpu_nodes[node].nic.rdma
        return TRANSPORT_TIMEOUT_S if rdma else PROCESS_GROUP_TIMEOUT_S


def _together(factors: Iterator[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The product of what is said of each node; nodes that are as they should be left out."""
    together: dict[int, float] = {}
    for node, factor in factors:
        together[node] = together.get(node, 1.0) * factor
    return tuple((node, factor) for node, factor in sorted(together.items()) if factor != 1.0)


def _nics(link: DegradedLink, cluster: ClusterSpec) -> range | tuple[int]:
    return range(cluster.gpu_nodes[link.node].nic_count) if link.nic is None else (link.nic,)


def _used(mesh: Mesh, cluster: ClusterSpec) -> set[int]:
    """Nodes that ranks are placed on, in order of nodes."""
    used, left = set[int](), mesh.world
    for index, node in enumerate(cluster.gpu_nodes):
        if left > 0:
            used.add(index)
        left -= node.gpu_count
    return used
