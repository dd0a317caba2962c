"""The emulated side: the cluster a program declares, and the program run on it.

Real counterpart: ``measure.local_cluster``. Nodes that were raylets of one host share its cores and
disks (``ClusterSpec.host_of``); what they offer is what the declaration says.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.specs import CpuSpec, DiskSpec, NicSpec, NodeSpec
from raysim.kernel.simulation import Simulation
from raysim.perf.constants import TrainingConstants
from raysim.perf.ray_core import RayCosts
from raysim.rayapi.compute import Compute
from raysim.rayapi.loader import run_script
from raysim.rayapi.session import LIMIT_S
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.config import RayConfig
from raysim.raycore.faults import Faults
from raysim.raycore.ids import node_ip
from raysim.raycore.state_log import StateLog
from raysim.raystate.names import NODE_NAME_LABEL
from raysim.scenario.declaration import (
    ADD_NODE,
    KILL_NODE,
    ClusterDeclaration,
    NodeDeclaration,
    parse_nodes,
)
from raysim.units import MIB

OBJECT_STORE_BYTES = 150 * MIB
"""Of a node that declares none: ``ray.cluster_utils.Cluster.add_node``."""
HEALTH_CHECKS = RayConfig(
    health_check_initial_delay_ms=1_000,
    health_check_period_ms=300,
    health_check_failure_threshold=3,
)
"""As ``measure.local_cluster`` sets them."""
_ADDED = re.compile(f"{ADD_NODE}([^'\n]+)'")
"""What a program's ``print('@add-node NODE')`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A cluster that waits for its program."""

    cluster: Cluster
    places: tuple[int, ...]
    """Number of each emulated node in the declaration; nodes with GPUs stand first."""
    started: int
    """How many of the declared nodes are there from the start."""
    training: TrainingConstants | None = None
    """Of its GPUs; None: raysim's own."""


def host(
    *, cores: int, memory_bytes: int, read_bytes_per_s: float = 1e9, write_bytes_per_s: float = 1e9
) -> NodeSpec:
    """The machine that a data folder describes, as every raylet on it sees it.

    Its network is the loopback, taken as 10 GB/s and 20 us, more than Ray's own copying carries;
    its disk reads and writes through the page cache. Both are assumed unless measured.
    """
    loopback = NicSpec(
        name="loopback", kind="ethernet", bytes_per_s=10e9, latency_s=2e-5, efficiency=1.0,
        rdma=False,
    )  # fmt: skip
    cpu = CpuSpec(
        name="host", sockets=1, cores=cores, memory_bytes_per_s=cores * 10e9,
        flops_per_s=cores * 50e9,
    )  # fmt: skip
    disk = DiskSpec(
        name="disk", kind="nvme", capacity_bytes=10**12, read_bytes_per_s=read_bytes_per_s,
        write_bytes_per_s=write_bytes_per_s, read_iops=1e5, write_iops=1e4, latency_s=1e-4,
    )  # fmt: skip
    return NodeSpec(
        name="host", provider="generic", vcpus=cores, memory_bytes=memory_bytes, cpu=cpu,
        nic=loopback, disks=((disk, 1),),
    )  # fmt: skip


def declared_cluster(
    declared: ClusterDeclaration,
    boxes: Sequence[NodeSpec],
    *,
    host_of: tuple[int, ...] | None = None,
    later: Sequence[NodeDeclaration] = (),
    costs: RayCosts | None = None,
    check: bool = False,
) -> Emulation:
    """The cluster that a program's header asks for.

    Parameters
    ----------
    declared
        From ``scenario.declaration``.
    boxes
        The hardware of each node, those that are added ``later`` included.
    host_of
        Which of them are raylets of one machine, as in ``ClusterSpec`` but in the order declared.
    later
        Nodes that the program adds: they are there, but off.
    costs
        Service times of Ray's code.
    check
        Run the invariants after every event.
    """
    groups, options = [], {}
    ordered = sorted(enumerate([*declared.nodes, *later]), key=lambda pair: not pair[1].num_gpus)
    for place, (number, node) in enumerate(ordered):
        groups.append(NodeGroup(name=f"n{number}", node=boxes[number], count=1, head=number == 0))
        resources = {"CPU": node.num_cpus, "GPU": node.num_gpus, **node.resources}
        resources["accelerator_type:gpu"] = 0  # of GPUs that are only declared, Ray knows no type
        resources |= {f"node:{node_ip(i)}": 0 for i in range(len(ordered))}
        resources[f"node:{node_ip(0)}"] = 1  # all raylets were on one host
        if declared.named:
            resources[f"n{number}"] = 1
        if node.memory_bytes is not None:
            resources["memory"] = node.memory_bytes
        options[place] = NodeOptions(
            resources=resources, labels={**node.labels, NODE_NAME_LABEL: f"n{number}"},
            object_store_bytes=node.object_store_bytes or OBJECT_STORE_BYTES,
            off=number >= len(declared.nodes),
        )  # fmt: skip
    places = tuple(number for number, _ in ordered)
    spec = ClusterSpec(
        groups=tuple(groups),
        fabric=FabricSpec(kind="star"),
        host_of=tuple(host_of[number] for number in places) if host_of else None,
    )
    cluster = Cluster(
        Simulation(check=check), spec, config=HEALTH_CHECKS, costs=costs, options=options,
        log=StateLog(),
    )  # fmt: skip
    return Emulation(cluster=cluster, places=places, started=len(declared.nodes))


def nodes_added(program: Path) -> tuple[NodeDeclaration, ...]:
    """Nodes for which a line that it prints asks."""
    source = program.read_text(encoding="utf-8")
    return tuple(node for text in _ADDED.findall(source) for node in parse_nodes(text))


def play(
    program: Path,
    emulation: Emulation,
    *,
    compute: Compute | None = None,
    limit_s: float = LIMIT_S,
    lines: list[str],
) -> None:
    """Run a program, and do what lines of its output ask for.

    ``lines`` gets what it prints, line by line. What the program raises is raised; it waiting for
    more than ``limit_s`` of virtual time raises ``ProgramHangs``.
    """
    cluster, places = emulation.cluster, emulation.places
    faults = Faults(cluster)
    joins = iter(range(emulation.started, len(places)))

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith(KILL_NODE):
            faults.kill_raylet(places.index(int(line.rpartition("n")[2])))
        elif line.startswith(ADD_NODE):
            for _ in parse_nodes(line.removeprefix(ADD_NODE)):
                cluster.start_node(places.index(next(joins)))

    out = _Lines(hear)
    with _address(f"{node_ip(cluster.head)}:6379"), contextlib.redirect_stdout(out):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the program's own
                run_script(
                    program, cluster=cluster, compute=compute, training=emulation.training,
                    limit_s=limit_s,
                )  # fmt: skip
        finally:
            out.end()


class _Lines(io.TextIOBase):
    """Output that is heard line by line."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._line = ""

    def write(self, text: str) -> int:
        """Whole lines are heard at once."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._hear(line)
        return len(text)

    def end(self) -> None:
        """The last line may lack its end."""
        if self._line:
            self.write("\n")


@contextlib.contextmanager
def _address(address: str) -> Any:
    """``ray.init()`` finds the cluster, as a driver on the head would."""
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
        if before is not None:
            os.environ["RAY_ADDRESS"] = before
