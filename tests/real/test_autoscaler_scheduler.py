"""Our scheduler decides as Ray's own: random clusters, demand, gangs and constraints."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("ray")

from ray.autoscaler.v2 import scheduler as theirs  # noqa: E402
from ray.autoscaler.v2.instance_manager.config import (  # noqa: E402
    NodeTypeConfig as TheirNodeType,
)
from ray.autoscaler.v2.schema import AutoscalerInstance  # noqa: E402
from ray.autoscaler.v2.utils import ResourceRequestUtil  # noqa: E402
from ray.core.generated import autoscaler_pb2, instance_manager_pb2  # noqa: E402

from raysim.raycore.autoscaler import AutoscalerConfig, NodeTypeConfig  # noqa: E402
from raysim.raycore.autoscaler.bin_packing import Availability, Node  # noqa: E402
from raysim.raycore.autoscaler.scheduler import schedule  # noqa: E402
from raysim.raycore.protocol import (  # noqa: E402
    Bundle,
    ClusterResourceState,
    PlacementGroupTableData,
    ResourceDemand,
)
from raysim.raycore.resources import ResourceSet  # noqa: E402

Shape = dict[str, float]
TYPES: dict[str, Shape] = {
    "head": {"CPU": 2},
    "small": {"CPU": 4, "memory": 8},
    "big": {"CPU": 16, "memory": 64},
    "gpu": {"CPU": 8, "GPU": 2, "memory": 32},
}
SHAPES: list[Shape] = [
    {"CPU": 1}, {"CPU": 2}, {"CPU": 4}, {"CPU": 1, "memory": 4}, {"GPU": 1}, {"CPU": 2, "GPU": 1},
    {"memory": 8}, {"CPU": 12}, {"CPU": 64}, {"CPU": 0.5},
]  # fmt: skip


class Case:
    """One situation, for both sides."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.limits = {t: (0, rng.randint(0, 6)) for t in TYPES}
        self.limits["small"] = (rng.randint(0, 1), rng.randint(1, 6))
        self.limits["head"] = (0, 0)
        self.max_workers = rng.choice([None, 3, 8])
        self.nodes: list[tuple[str, Shape, int, bool]] = [("head", {"CPU": 0}, 0, True)]
        for name in ("small", "big", "gpu"):
            for _ in range(rng.randint(0, min(2, self.limits[name][1]))):
                free = {k: float(rng.randint(0, int(v))) for k, v in TYPES[name].items()}
                if rng.random() < 0.3:
                    free = dict(TYPES[name])
                idle_s = rng.choice([0, 30, 61, 90 + len(self.nodes)])
                self.nodes.append((name, free, idle_s, rng.random() < 0.8))
        self.demand = [(s, rng.randint(1, 9)) for s in rng.sample(SHAPES, rng.randint(0, 4))]
        self.gangs = [
            (rng.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
             [rng.choice(SHAPES[:6]) for _ in range(rng.randint(1, 4))])
            for _ in range(rng.randint(0, 2))
        ]  # fmt: skip
        self.constraint = [rng.choice(SHAPES[:6]) for _ in range(rng.choice([0, 0, 3, 6]))]

    def ours(self) -> tuple[dict[str, int], list[int]]:
        types = tuple(
            NodeTypeConfig(
                name=t, resources=r, min_workers=self.limits[t][0], max_workers=self.limits[t][1]
            )
            for t, r in TYPES.items()
        )
        nodes = []
        for i, (name, free, idle_s, running) in enumerate(self.nodes):
            total = ResourceSet.of(TYPES[name]).units
            available = ResourceSet.of(free).units if running else total
            nodes.append(
                Node.new(
                    name, total, {k: available.get(k, 0) for k in total}, {}, instance=i + 1,
                    node_id=i if running else -1, is_head=i == 0,
                    idle_ns=int(idle_s * 1e9) if running else 0,
                )
            )  # fmt: skip
        state = ClusterResourceState(
            (), (),
            tuple(ResourceDemand(ResourceSet.of(s), n) for s, n in self.demand),
            tuple(
                PlacementGroupTableData(
                    g, "", "PENDING", strategy,
                    tuple(Bundle(g, i, ResourceSet.of(b)) for i, b in enumerate(bundles)),
                    (-1,) * len(bundles),
                )
                for g, (strategy, bundles) in enumerate(self.gangs)
            ),
            tuple(ResourceSet.of(s) for s in self.constraint),
        )  # fmt: skip
        decision = schedule(
            AutoscalerConfig(node_types=types, max_workers=self.max_workers), state, nodes,
            idle_timeout_s=60, availability=Availability({}, {}), head_type="head",
        )  # fmt: skip
        return decision.launch, sorted(n.instance for n in decision.terminate)

    def rays(self) -> tuple[dict[str, int], list[int]]:
        make = ResourceRequestUtil.make
        kind = ResourceRequestUtil.PlacementConstraintType
        gangs = []
        for g, (strategy, bundles) in enumerate(self.gangs):
            constraints: Any = None
            if strategy == "STRICT_PACK":
                constraints = [(kind.AFFINITY, f"_PG_{g}", "")]
            elif strategy == "STRICT_SPREAD":
                constraints = [(kind.ANTI_AFFINITY, f"_PG_{g}", "")]
            requests = [make(b, constraints) for b in bundles]
            gangs.append(autoscaler_pb2.GangResourceRequest(requests=requests))
        constraint = [
            autoscaler_pb2.ClusterResourceConstraint(
                resource_requests=ResourceRequestUtil.group_by_count(
                    [make(s) for s in self.constraint]
                )
            )
        ]
        reply = theirs.ResourceDemandScheduler().schedule(
            theirs.SchedulingRequest(
                disable_launch_config_check=True,
                node_type_configs={
                    t: TheirNodeType(
                        name=t, resources=dict(r), min_worker_nodes=self.limits[t][0],
                        max_worker_nodes=self.limits[t][1] + (t == "head"),
                    )
                    for t, r in TYPES.items()
                },
                max_num_nodes=None if self.max_workers is None else self.max_workers + 1,
                idle_timeout_s=60,
                resource_requests=[
                    autoscaler_pb2.ResourceRequestByCount(request=make(s), count=n)
                    for s, n in self.demand
                ],
                gang_resource_requests=gangs,
                cluster_resource_constraints=constraint if self.constraint else [],
                current_instances=[self._instance(i) for i in range(len(self.nodes))],
            )
        )  # fmt: skip
        launch = {r.instance_type: r.count for r in reply.to_launch}
        return launch, sorted(int(r.instance_id) for r in reply.to_terminate if r.instance_id)

    def _instance(self, i: int) -> AutoscalerInstance:
        name, free, idle_s, running = self.nodes[i]
        states = instance_manager_pb2.Instance
        nodes = instance_manager_pb2.NodeKind
        return AutoscalerInstance(
            cloud_instance_id=f"c{i}",
            im_instance=states(
                instance_id=str(i + 1), instance_type=name, node_id=f"{i:04x}" if running else "",
                status=states.RAY_RUNNING if running or i == 0 else states.REQUESTED,
                node_kind=nodes.HEAD if i == 0 else nodes.WORKER,
            ),
            ray_node=autoscaler_pb2.NodeState(
                node_id=i.to_bytes(2, "big"), ray_node_type_name=name, total_resources=TYPES[name],
                available_resources=free, idle_duration_ms=idle_s * 1000,
                status=autoscaler_pb2.NodeStatus.RUNNING,
            )
            if running
            else None,
        )  # fmt: skip


@pytest.mark.parametrize("block", range(6))
def test_same_decision(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        case = Case(seed)
        assert case.ours() == case.rays(), f"seed {seed}"
