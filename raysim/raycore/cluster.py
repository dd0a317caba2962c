"""A Ray cluster on hardware: the one file that knows every room, makes them and starts processes.

Real counterpart: ``ray start`` on every machine, and what the operating system does for raylets:
starting and killing processes.

Every node of the cluster file exists as hardware from the start; one that the autoscaler may add
is off until launched. What Ray detects on a machine (cores, GPUs, memory) is taken from its
datasheet: with no use of memory by anything else, so the object store is 30 % of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.constant_network import ConstantNetwork
from raysim.hardware.network import FlowNetwork
from raysim.hardware.node import Node, make_nodes
from raysim.hardware.topology import Topology
from raysim.hardware.transfer import Network
from raysim.kernel.component import Component, Message, one_way
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.autoscaler import Autoscaler, AutoscalerConfig
from raysim.raycore.cloud import EVERYWHERE, Cloud, CloudSpec
from raysim.raycore.config import RayConfig
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.gcs.server import Gcs
from raysim.raycore.ids import Ids, NodeID, WorkerAddress, WorkerID, node_ip
from raysim.raycore.launcher import ProcessSpec
from raysim.raycore.object_manager.io_worker import IOWorker
from raysim.raycore.object_manager.object_manager import ObjectManager
from raysim.raycore.plasma import PlasmaStore
from raysim.raycore.protocol import (
    GCS,
    ReachabilityChanged,
    WorkerExited,
    raylet,
    raylet_process,
)
from raysim.raycore.raylet.raylet import Raylet
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import UNIT
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import StateLog
from raysim.raycore.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What ``ray start`` is told on one node."""

    resources: dict[str, float] = field(default_factory=dict)
    """Instead of what is detected; custom ones beside it."""
    labels: dict[str, str] = field(default_factory=dict)
    object_store_bytes: int | None = None
    node_type: str = ""
    off: bool = False
    """Not there at first: ``Cluster.start_node`` brings it."""


SETTLE_FRAC = 0.001
"""Of the time that an object is on its way: how soon others notice, if hundreds are. Assumed: a
sort of 800 GB reduces 0.03 % slower than at once; with 0.01 it would be 1.3 %."""


class Cluster:
    """GCS, raylets, stores, object managers and processes of one Ray cluster.

    Parameters
    ----------
    sim
        The run. Its transport becomes this cluster's wire.
    spec
        Nodes and fabric. NodeID is the index in ``spec.nodes``.
    config, costs
        Ray's settings, and service times of its code.
    options
        By NodeID; nodes left out take what is detected and their group says.
    autoscaling
        Run the autoscaler; None: a fixed cluster.
    clouds
        How machines that are not there yet come.
    log
        Keeps what happened to tasks, actors and objects; nothing by default.
    fidelity
        Of the network: ``flow`` shares links by max-min, ``constant`` does not share.
    """

    def __init__(
        self,
        sim: Simulation,
        spec: ClusterSpec,
        *,
        config: RayConfig | None = None,
        costs: RayCosts | None = None,
        options: dict[NodeID, NodeOptions] | None = None,
        autoscaling: AutoscalerConfig | None = None,
        clouds: CloudSpec = EVERYWHERE,
        log: StateLog | None = None,
        fidelity: Literal["flow", "constant"] = "flow",
    ) -> None:
        self.sim = sim
        grows = autoscaling is not None or clouds.spares
        self.spec = _grown(spec, clouds.spares) if grows else spec
        topology = Topology.build(self.spec)
        network: Network = (
            FlowNetwork(sim, topology, settle_frac=SETTLE_FRAC) if fidelity == "flow"
            else ConstantNetwork(sim, topology)
        )  # fmt: skip
        self.groups = _group_of_each(self.spec)
        self.head = next((i for i, g in enumerate(self.groups) if g.head), 0)
        self.options = options or {}
        config, costs = config or RayConfig(), costs or RayCosts()
        nodes = make_nodes(sim, network, topology, self.spec.host_of)
        for node in nodes:
            if node.host.load is not None:
                node.host.load.cold_factor = costs.cold_factor
                node.host.load.cold_ns = costs.cold_ns
        self.wire = Wire(sim, network, costs, nodes, self.head)
        sim.transport = self.wire
        self.env = Surroundings(
            sim=sim, config=config, costs=costs, ids=Ids(), view=ResourceView(),
            log=log or StateLog(enabled=False), network=network, topology=topology,
            nodes=nodes, launcher=self, head=self.head,
        )  # fmt: skip
        self.processes: dict[WorkerID, CoreWorker | IOWorker] = {}
        """Alive, of all nodes, in order of start."""
        self.machine_came: list[Callable[[NodeID], object]] = []
        """Told of nodes that the cloud brings."""
        self.cloud = Cloud(
            sim, _beyond(spec, self.groups), [g.name for g in self.groups], clouds,
            start=self._machine_up,
            stop=lambda node_id: self.end_processes(node_id, "node terminated"),
        )  # fmt: skip
        self.gcs = Gcs(self.env)
        self._add(self.gcs, self.head)
        for node_id in range(len(self.env.nodes)):
            if node_id not in self.cloud.off and not self.options.get(node_id, NodeOptions()).off:
                self.start_node(node_id)
        if autoscaling is not None:
            sim.add(Autoscaler(self.env, autoscaling, provider=self.cloud))

    # Nodes

    def start_node(self, node_id: NodeID) -> None:
        """``ray start``: a raylet with its store and object manager."""
        load = self.env.nodes[node_id].host.load
        if load is not None:
            load.occupy(node_id, self.env.costs.node_background_cores)
        if raylet(node_id) in self.sim.components:
            self._end_workers(node_id, "its raylet has died")  # of an earlier raylet
            for room in self.sim.components.values():
                if room.address.startswith(f"node-{node_id}/"):
                    room.break_silence()
            for address in raylet_process(node_id):
                self.sim.components[address].restart()
            return
        node, given = self.env.nodes[node_id], self.options.get(node_id, NodeOptions())
        detected, store_bytes = self._detect(node_id, node, given)
        group = self.groups[node_id]
        labels = {"ray.io/node-group": group.name, **group.labels, **given.labels}
        rooms: Sequence[Component] = (  # registered before others there subscribe
            Raylet(
                self.env, node_id, resources=detected, labels=labels, is_head=node_id == self.head,
                node_type=given.node_type or group.name,
            ),
            PlasmaStore(self.env, node_id, capacity_bytes=store_bytes),
            ObjectManager(
                self.env, node_id,
                disk_capacity_bytes=sum(
                    d.spec.capacity_bytes for d in self.env.spill_disks(node_id)
                ),
            ),
        )  # fmt: skip
        for room in rooms:
            self._add(room, node_id)

    def _add(self, room: Component, node_id: NodeID) -> None:
        """Start a room on a node, with the others that use its cores."""
        room.cores = self.env.nodes[node_id].host.load
        self.sim.add(room)

    def _detect(
        self, node_id: NodeID, node: Node, given: NodeOptions
    ) -> tuple[dict[str, int], int]:
        """Resources in steps, and the store's capacity."""
        config, total = self.env.config, node.spec.memory_bytes
        resources: dict[str, float] = {"CPU": node.spec.vcpus}
        if node.spec.gpu is not None:
            resources["GPU"] = node.spec.gpu_count
            resources[f"accelerator_type:{node.spec.gpu.accelerator_type}"] = 1
        resources |= self.groups[node_id].resources | given.resources
        store_bytes = given.object_store_bytes or int(
            resources.pop("object_store_memory", 0)
            or min(
                total * config.default_object_store_memory_proportion,
                config.default_object_store_max_memory_bytes,
            )
        )
        resources["object_store_memory"] = store_bytes
        resources.setdefault("memory", max(0, total - store_bytes))
        resources.setdefault(f"node:{node_ip(node_id)}", 1)
        if node_id == self.head:
            resources["node:__internal_head__"] = 1
        return {name: round(q * UNIT) for name, q in resources.items() if q}, store_bytes

    # Programs

    def driver(
        self, then: Callable[[CoreWorker], object] | None = None, *, node_id: NodeID | None = None
    ) -> CoreWorker:
        """Start a driver; ``then(driver)`` once its raylet has answered."""
        env = self.env
        at = self.head if node_id is None else node_id
        driver = CoreWorker(env, at, env.ids.worker(), "DRIVER", env.ids.job())
        self.processes[driver.me.worker_id] = driver
        self._add(driver, at)
        if then is not None:
            driver.ready(then)
        return driver

    # ProcessLauncher

    def start(self, spec: ProcessSpec) -> WorkerID:
        """Start a process; it uses its node's cores and registers with its raylet when it is up."""
        worker_id = self.env.ids.worker()
        costs, node = self.env.costs, self.env.nodes[spec.node_id]
        stream = self.sim.rng(f"{node.name}/worker-start")
        core_s = costs.worker_start_core_s - costs.first_value_core_s
        if spec.runtime_env is not None:
            core_s += costs.setup_worker_core_s
        core_s *= math.exp(costs.worker_start_sigma * stream.standard_normal())
        epoch = self.sim.components[raylet(spec.node_id)].epoch
        node.starting.job(core_s, self._up, (spec, worker_id, epoch), failed=_nobody)
        return worker_id

    def _up(self, started: tuple[ProcessSpec, WorkerID, int]) -> None:
        spec, worker_id, epoch = started
        its_raylet = self.sim.components[raylet(spec.node_id)]
        if its_raylet.epoch != epoch or its_raylet.state != "up":
            return  # the raylet that wanted it has died: it finds nobody to register with
        if spec.worker_type in ("SPILL_WORKER", "RESTORE_WORKER"):
            process: CoreWorker | IOWorker = IOWorker(
                self.env, spec.node_id, worker_id, spec.worker_type, spec.startup_token
            )
        else:
            process = CoreWorker(
                self.env, spec.node_id, worker_id, spec.worker_type, spec.job_id,
                startup_token=spec.startup_token,
                runtime_env_key=spec.runtime_env.key if spec.runtime_env else "",
            )  # fmt: skip
        self.processes[worker_id] = process
        self._add(process, spec.node_id)
        self._be_nice(process)

    def _be_nice(self, process: CoreWorker | IOWorker) -> None:
        """Its threads yield to others, where cores are few."""
        load = self.env.nodes[process.me.node_id].host.load
        if load is not None:
            load.nice |= {process: None, process.address: None}
            if isinstance(process, CoreWorker):
                load.nice[process.executor] = None

    def kill(self, worker_id: WorkerID, *, reason: str, intended: bool = False) -> None:
        """End a process at once; its raylet gets ``WorkerExited``."""
        process = self.processes.pop(worker_id, None)
        if process is None:
            return
        process.crash(reason=reason)
        self.tell(
            raylet(process.me.node_id),
            WorkerExited(worker=process.me, reason=reason, intended=intended),
        )

    def memory_bytes(self, worker_id: WorkerID) -> int:
        """Resident memory of a process, without the object store."""
        process = self.processes.get(worker_id)
        return process.memory_bytes if process is not None else 0

    def tell(self, address: str, message: Message) -> None:
        """Let a room know at once what its operating system would tell it."""
        room = self.sim.components[address]
        if room.state == "up":
            self.sim.clock.note(room.takes_message)
            room.message_arrives(one_way(room, message))

    def _machine_up(self, node_id: NodeID) -> None:
        """A machine has come: ``ray start`` there."""
        self.env.nodes[node_id].restore()
        self.start_node(node_id)
        for told in self.machine_came:
            told(node_id)

    def is_up(self, node_id: NodeID) -> bool:
        """Whether its raylet runs."""
        there = self.sim.components.get(raylet(node_id))
        return there is not None and there.state == "up"

    def end_processes(self, node_id: NodeID, reason: str, *, silent: bool = False) -> None:
        """Every process of the node ends, the raylet's first."""
        load = self.env.nodes[node_id].host.load
        if load is not None:
            load.occupy(node_id, 0.0)
        for address in raylet_process(node_id):
            component = self.sim.components.get(address)
            if component is not None:
                component.crash(reason=reason, silent=silent)
        self._end_workers(node_id, reason, silent=silent)
        if not silent and self.wire.is_cut(node_id) == self.wire.is_cut(self.head):
            self.tell(GCS, ReachabilityChanged(node_id=node_id, how="refuses"))

    def _end_workers(self, node_id: NodeID, reason: str, *, silent: bool = False) -> None:
        for worker_id, process in list(self.processes.items()):
            if process.me.node_id == node_id:
                del self.processes[worker_id]
                process.crash(reason=reason, silent=silent)

    def worker_at(self, address: WorkerAddress) -> CoreWorker | IOWorker | None:
        """The live process at an address."""
        return self.processes.get(address.worker_id)


def _nobody(_job: Any, _cause: Any) -> None:
    """The node died under it; its raylet died too, so nobody waits."""


def _grown(spec: ClusterSpec, spares: Mapping[str, int]) -> ClusterSpec:
    """Every group at its largest, and what may have to replace some of it."""
    return replace(
        spec,
        groups=tuple(
            replace(g, count=max(g.count, g.max_count or 0) + spares.get(g.name, 0))
            for g in spec.groups
        ),
    )


def _group_of_each(spec: ClusterSpec) -> list[NodeGroup]:
    """The group of every node of ``spec.nodes``."""
    ordered = sorted(spec.groups, key=lambda g: not g.head)
    with_gpus = [g for g in ordered for _ in range(g.count) if g.node.gpu_count]
    return with_gpus + [g for g in ordered for _ in range(g.count) if not g.node.gpu_count]


def _beyond(spec: ClusterSpec, groups: list[NodeGroup]) -> dict[NodeID, str]:
    """Nodes that a group of ``spec`` does not have yet, and the group."""
    left = {group.name: group.count for group in spec.groups}
    off: dict[NodeID, str] = {}
    for node_id, group in enumerate(groups):
        if not left[group.name]:
            off[node_id] = group.name
        else:
            left[group.name] -= 1
    return off
