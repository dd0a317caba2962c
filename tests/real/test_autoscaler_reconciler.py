"""Our autoscaler's loop asks for, gives up and ends the same machines in the same rounds as Ray's.

Ray's ``Reconciler`` runs on a scripted cloud and a clock of its own; ours on the same script. What
is compared is every request and every termination, by round and type.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("ray")

from ray.autoscaler._private.resource_demand_scheduler import (  # noqa: E402
    ResourceDemandScheduler as TheirV1,
)
from ray.autoscaler.v2 import scheduler as theirs  # noqa: E402
from ray.autoscaler.v2.instance_manager.config import (  # noqa: E402
    InstanceReconcileConfig,
)
from ray.autoscaler.v2.instance_manager.config import (  # noqa: E402
    NodeTypeConfig as TheirNodeType,
)
from ray.autoscaler.v2.instance_manager.instance_manager import InstanceManager  # noqa: E402
from ray.autoscaler.v2.instance_manager.instance_storage import InstanceStorage  # noqa: E402
from ray.autoscaler.v2.instance_manager.node_provider import (  # noqa: E402
    CloudInstance,
    LaunchNodeError,
)
from ray.autoscaler.v2.instance_manager.reconciler import Reconciler  # noqa: E402
from ray.autoscaler.v2.instance_manager.storage import InMemoryStorage  # noqa: E402
from ray.autoscaler.v2.instance_manager.subscribers.cloud_resource_monitor import (  # noqa: E402
    CloudResourceMonitor,
)
from ray.autoscaler.v2.utils import ResourceRequestUtil  # noqa: E402
from ray.core.generated import autoscaler_pb2 as pb  # noqa: E402
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind  # noqa: E402

from raysim.raycore.autoscaler import Autoscaler, AutoscalerConfig, NodeTypeConfig  # noqa: E402
from raysim.raycore.autoscaler.launch_limits import v1_launches, v2_launches  # noqa: E402
from raysim.raycore.protocol import DrainRaylet, ResourceDemand, UnregisterNode  # noqa: E402
from raysim.raycore.resources import ResourceSet  # noqa: E402
from tests.unit.raycore.gcs_case import GcsCase  # noqa: E402

ROUND_S = 5
CPUS = {"small": 4, "big": 8}
IDLE_S = 30.0
Seen = list[tuple[int, str, str]]
"""(round, what, type)."""


class Script:
    """What the cloud and the cluster do."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.speed = rng.choice([0.0, 1.0, 2.5, 1000.0])
        self.waiting = rng.choice([1, 9, 60])
        self.quiet_s = rng.choice([150.5, 400.5])
        """When nothing is wanted any more, and all nodes are idle."""
        self.request_s = {t: rng.choice([0.3, 2.2, 11.7, 43.1]) for t in CPUS}
        self.start_s = {t: rng.choice([3.4, 26.6, 97.3]) for t in CPUS}
        self.refuses_until_s = rng.choice([0.0, 0.0, 38.0])
        self.most = {t: rng.randint(1, 30) for t in CPUS}
        self.end_s = 700
        if seed % 6 == 0:  # requests are given up, three times over
            self.request_s["small"], self.quiet_s, self.end_s = math.inf, 1e9, 2800
            self.waiting = 9
        elif seed % 6 == 1:  # a pod that never runs; its type is avoided then
            self.start_s["small"], self.quiet_s, self.end_s = math.inf, 1e9, 4500
            self.waiting = 9


class OurCloud:
    """The script, for our autoscaler."""

    def __init__(self, case: GcsCase, script: Script) -> None:
        self.case, self.script = case, script
        self.seen: Seen = []
        self.types: dict[int, str] = {}
        self.terminated: list[int] = []

    @property
    def round(self) -> int:
        return round(self.case.sim.now_ns / 1e9 / ROUND_S)

    def launch(self, node_type: str, then: Callable[[Any], object]) -> None:
        self.seen.append((self.round, "launch", node_type))
        delay_s = self.script.request_s[node_type]
        if self.case.sim.now_ns / 1e9 < self.script.refuses_until_s:
            self.case.sim.call_later(int(0.2 * 1e9), lambda _: then(None), None)
        elif math.isfinite(delay_s):
            self.case.sim.call_later(int(delay_s * 1e9), lambda _: self._there(node_type, then))

    def _there(self, node_type: str, then: Callable[[Any], object]) -> None:
        node_id = 100 + len(self.types)
        self.types[node_id] = node_type
        then(node_id)
        delay_s = self.script.start_s[node_type]
        if math.isfinite(delay_s):
            self.case.sim.call_later(int(delay_s * 1e9), self._up, node_id)

    def _up(self, node_id: int) -> None:
        if node_id not in self.terminated:
            node_type = self.types[node_id]
            self.case.add_node(node_id, cpus=CPUS[node_type], node_type=node_type)
            if self.case.sim.now_ns / 1e9 > self.script.quiet_s:
                self.case.report(node_id, cpus=CPUS[node_type], idle_since_ns=self.case.sim.now_ns)

    def machines(self) -> dict[int, str]:
        return {}

    def runs(self, node_id: int) -> bool:
        return node_id < 0

    def terminate(self, node_id: int) -> None:
        self.seen.append((self.round, "terminate", self.types[node_id]))
        self.terminated.append(node_id)


def ours(script: Script) -> Seen:
    case = GcsCase(nodes=1, cpus=0, check=False)
    config = AutoscalerConfig(
        node_types=tuple(
            NodeTypeConfig(name=t, resources={"CPU": n}, max_workers=script.most[t])
            for t, n in CPUS.items()
        ),
        upscaling_speed=script.speed, idle_timeout_s=IDLE_S, kuberay=True,
    )  # fmt: skip
    cloud = OurCloud(case, script)
    case.sim.add(Autoscaler(case.env, config, provider=cloud))
    case.raylets[0].load = (ResourceDemand(ResourceSet.of({"CPU": 1}), script.waiting),)
    case.report(0, cpus=0, total=0, waiting=True)
    quiet = False
    for second in range(script.end_s):
        case.run(second + 0.5)
        if not quiet and second + 0.5 >= script.quiet_s:
            quiet = True
            case.raylets[0].load = ()
            case.report(0, cpus=0, total=0)
            for node_id in list(case.raylets):
                if node_id >= 100:
                    cpus = CPUS[cloud.types[node_id]]
                    case.report(node_id, cpus=cpus, idle_since_ns=case.sim.now_ns)
        for node_id, its in case.raylets.items():
            if node_id >= 100 and its.of(DrainRaylet) and case.gcs.nodes.alive(node_id):
                its.ask(UnregisterNode(node_id, "drained"))
    return cloud.seen


class TheirCloud:
    """The script, for Ray's reconciler; also the cluster's state, and what Ray's stopper does."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.now_s = 0.0
        self.seen: Seen = []
        self.machines: dict[str, tuple[str, float]] = {}
        """By cloud id: type, when listed."""
        self.errors: list[tuple[float, LaunchNodeError]] = []
        self.drained: dict[str, float] = {}

    def notify(self, events: list[Any]) -> None:
        """As a subscriber of the instance manager."""
        at = round(self.now_s / ROUND_S)
        for event in events:
            if event.new_instance_status == Instance.REQUESTED:
                node_type = event.instance_type
                self.seen.append((at, "launch", node_type))
                if self.now_s < self.script.refuses_until_s:
                    error = LaunchNodeError(node_type, 1, event.launch_request_id, 0)
                    self.errors.append((self.now_s + 0.2, error))
                elif math.isfinite(self.script.request_s[node_type]):
                    listed_s = self.now_s + self.script.request_s[node_type]
                    self.machines[f"c{len(self.machines)}"] = (node_type, listed_s)
            elif event.new_instance_status == Instance.TERMINATING:
                cloud_id = event.cloud_instance_id
                self.seen.append((at, "terminate", self.machines[cloud_id][0]))
                self.machines[cloud_id] = (self.machines[cloud_id][0], math.inf)
            elif event.new_instance_status == Instance.RAY_STOP_REQUESTED:
                ray_id = event.termination_request.ray_node_id
                cloud_id = bytes.fromhex(ray_id).decode()
                self.drained[cloud_id] = self.now_s

    def listed(self) -> dict[str, CloudInstance]:
        return {
            cloud_id: CloudInstance(cloud_id, node_type, NodeKind.WORKER, is_running=True)
            for cloud_id, (node_type, since_s) in self.machines.items()
            if since_s <= self.now_s
        } | {"head": CloudInstance("head", "head", NodeKind.HEAD, is_running=True)}

    def poll_errors(self) -> list[LaunchNodeError]:
        due = [error for at_s, error in self.errors if at_s <= self.now_s]
        self.errors = [(t, e) for t, e in self.errors if t > self.now_s]
        return due

    def state(self) -> Any:
        nodes = [_node("head", "head", 0, 0, pb.NodeStatus.RUNNING)]
        nodes[0].total_resources["node:__internal_head__"] = 1  # how Ray knows it
        for cloud_id, (node_type, since_s) in self.machines.items():
            up_s = since_s + self.script.start_s[node_type]
            if up_s > self.now_s or math.isinf(since_s):
                continue
            idle_since_s = max(up_s, self.script.quiet_s)
            idle_s = max(0.0, self.now_s - idle_since_s)
            status = pb.NodeStatus.RUNNING
            if cloud_id in self.drained:  # it leaves within the second
                status = pb.NodeStatus.DEAD
            nodes.append(_node(cloud_id, node_type, CPUS[node_type], idle_s, status))
        requests = []
        if self.now_s < self.script.quiet_s:
            request = ResourceRequestUtil.make({"CPU": 1})
            requests = [pb.ResourceRequestByCount(request=request, count=self.script.waiting)]
        return pb.ClusterResourceState(node_states=nodes, pending_resource_requests=requests)


def _node(cloud_id: str, node_type: str, cpus: float, idle_s: float, status: Any) -> Any:
    return pb.NodeState(
        node_id=cloud_id.encode(), instance_id=cloud_id, ray_node_type_name=node_type,
        total_resources={"CPU": cpus}, available_resources={"CPU": cpus},
        idle_duration_ms=int(idle_s * 1000), status=status,
    )  # fmt: skip


def rays(script: Script, monkeypatch: pytest.MonkeyPatch) -> Seen:
    cloud, monitor = TheirCloud(script), CloudResourceMonitor()
    monkeypatch.setattr(time, "time_ns", lambda: int((cloud.now_s + 1e6) * 1e9))
    monkeypatch.setattr(time, "time", lambda: cloud.now_s + 1e6)
    manager = InstanceManager(
        InstanceStorage(cluster_id="", storage=InMemoryStorage()), [cloud, monitor]
    )
    config = MagicMock()
    config.get_node_type_configs.return_value = {
        "head": TheirNodeType("head", 0, 1, resources={"CPU": 0}),
        **{t: TheirNodeType(t, 0, script.most[t], resources={"CPU": n}) for t, n in CPUS.items()},
    }
    config.get_provider_instance_type.side_effect = str
    config.get_max_num_nodes.return_value = None
    config.get_idle_timeout_s.return_value = IDLE_S
    config.get_pending_idle_timeout_s.return_value = None
    config.disable_launch_config_check.return_value = True
    config.disable_node_updaters.return_value = True
    config.get_upscaling_speed.return_value = script.speed
    config.get_max_concurrent_launches.return_value = 10
    config.get_instance_reconcile_config.return_value = InstanceReconcileConfig()
    decide = theirs.ResourceDemandScheduler()
    for n in range(script.end_s // ROUND_S + 1):
        cloud.now_s = n * ROUND_S
        if n == 0:  # ours has not heard of the demand yet; the head is there
            continue
        Reconciler.reconcile(
            manager, decide, MagicMock(), monitor, cloud.state(), cloud.listed(), config,
            cloud_provider_errors=cloud.poll_errors(),
        )  # fmt: skip
    return cloud.seen


@pytest.mark.parametrize("seed", range(30))
def test_same_machines_in_the_same_rounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(seed)
    seen = ours(script)
    assert seen
    assert sorted(seen) == sorted(rays(script, monkeypatch))


def test_version_2_lets_through_as_many() -> None:
    rng = random.Random(0)
    for _ in range(500):
        queued = {t: rng.randint(1, 40) for t in "abc" if rng.random() < 0.8}
        running = {t: rng.randint(0, 40) for t in "abc"}
        requested, speed = rng.randint(0, 12), rng.choice([0.0, 0.3, 1.0, 1000.0])

        def some(counts: dict[str, int]) -> list[Any]:
            return [Instance(instance_type=t) for t, n in counts.items() for _ in range(n)]

        said = Reconciler._compute_to_launch(
            some(queued), some({"a": requested}), some(running), speed, 10
        )
        mine = v2_launches(queued, running, requested=requested, speed=speed, most_requested=10)
        assert mine == {t: len(instances) for t, instances in said.items()}


def test_version_1_lets_through_as_many() -> None:
    rng = random.Random(1)
    for _ in range(500):
        wanted = {t: rng.randint(1, 40) for t in "abc" if rng.random() < 0.8}
        running, pending, urgent = ({t: rng.randint(0, 20) for t in "abc"} for _ in range(3))
        its = MagicMock()
        its.upscaling_speed = rng.choice([0.0, 0.3, 1.0, 7.0])
        its._separate_running_and_pending_nodes.return_value = running, pending
        said = TheirV1._get_concurrent_resource_demand_to_launch(
            its, wanted, [], [], {}, urgent, {}
        )
        mine = v1_launches(wanted, running, pending, urgent, speed=its.upscaling_speed)
        assert mine == said
