"""Our scheduler decides as Ray's own: random clusters, demand, gangs and constraints."""

from __future__ import annotations

import json
from pathlib import Path
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

from tests.unit.raycore.autoscaler_cases import TYPES, Case  # noqa: E402


def rays(case: Case) -> tuple[dict[str, int], list[int]]:
    make = ResourceRequestUtil.make
    kind = ResourceRequestUtil.PlacementConstraintType
    gangs = []
    for g, (strategy, bundles) in enumerate(case.gangs):
        constraints: Any = None
        if strategy == "STRICT_PACK":
            constraints = [(kind.AFFINITY, f"_PG_{g}", "")]
        elif strategy == "STRICT_SPREAD":
            constraints = [(kind.ANTI_AFFINITY, f"_PG_{g}", "")]
        requests = [make(b, constraints) for b in bundles]
        gangs.append(autoscaler_pb2.GangResourceRequest(requests=requests))
    constraint = [
        autoscaler_pb2.ClusterResourceConstraint(
            resource_requests=ResourceRequestUtil.group_by_count([make(s) for s in case.constraint])
        )
    ]
    reply = theirs.ResourceDemandScheduler().schedule(
        theirs.SchedulingRequest(
            disable_launch_config_check=not case.checked,
            cloud_resource_availabilities=case.relative,
            recoverable_resource_availabilities=case.recoverable,
            node_type_configs={
                t: TheirNodeType(
                    name=t, resources=dict(r), min_worker_nodes=case.limits[t][0],
                    max_worker_nodes=case.limits[t][1] + (t == "head"),
                    priority=case.priorities[t], launch_config_hash="new",
                )
                for t, r in TYPES.items()
            },
            max_num_nodes=None if case.max_workers is None else case.max_workers + 1,
            idle_timeout_s=60,
            resource_requests=[
                autoscaler_pb2.ResourceRequestByCount(request=make(s), count=n)
                for s, n in case.demand
            ],
            gang_resource_requests=gangs,
            cluster_resource_constraints=constraint if case.constraint else [],
            current_instances=[_instance(case, i) for i in range(len(case.nodes))],
        )
    )  # fmt: skip
    launch = {r.instance_type: r.count for r in reply.to_launch}
    return launch, sorted(int(r.instance_id) for r in reply.to_terminate if r.instance_id)


def _instance(case: Case, i: int) -> AutoscalerInstance:
    name, free, idle_s, running = case.nodes[i]
    states = instance_manager_pb2.Instance
    nodes = instance_manager_pb2.NodeKind
    return AutoscalerInstance(
        cloud_instance_id=f"c{i}",
        im_instance=states(
            instance_id=str(i + 1), instance_type=name, node_id=f"{i:04x}" if running else "",
            status=states.RAY_RUNNING if running or i == 0 else states.REQUESTED,
            node_kind=nodes.HEAD if i == 0 else nodes.WORKER,
            launch_config_hash=case.configs[i],
        ),
        ray_node=autoscaler_pb2.NodeState(
            node_id=i.to_bytes(2, "big"), ray_node_type_name=name, total_resources=TYPES[name],
            available_resources=free, idle_duration_ms=idle_s * 1000,
            status=autoscaler_pb2.NodeStatus.RUNNING,
        )
        if running
        else None,
    )  # fmt: skip


RECORD = Path(__file__).parents[1] / "data" / "autoscaler_decisions.json"


@pytest.mark.parametrize("block", range(6))
def test_same_decision(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        case = Case(seed)
        assert case.ours() == rays(case), f"seed {seed}"


def test_what_is_recorded_is_what_ray_says(update_golden: bool) -> None:
    if update_golden:
        said = {str(seed): rays(Case(seed)) for seed in range(60)}
        RECORD.write_text(json.dumps(said, indent=None, separators=(",", ":")) + "\n")
    for seed, (launch, ended) in json.loads(RECORD.read_text()).items():
        assert rays(Case(int(seed))) == (launch, ended)
