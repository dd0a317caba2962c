"""``ray status`` of a moment, and its text beside that of Ray's own formatters."""

from __future__ import annotations

import pytest

from raysim.raycore.ids import WorkerAddress, hex_id
from raysim.raycore.resources import ResourceSet
from raysim.raystate.moment import moment
from raysim.results.ray.status import (
    ClusterStatus,
    GroupDemand,
    NodeReport,
    PendingNode,
    clock,
    cluster_status,
    format_memory,
    status_text,
    usage_lines,
)
from tests.unit.results.ray_cases import (
    MS,
    Story,
    actor_options,
    as_seen_on_a_laptop,
    options,
)

GIB = 2**30


def status(story: Story, t_ms: float, **more) -> ClusterStatus:
    return cluster_status(moment(story.rows, int(t_ms * MS)), **more)


def test_text_of_a_quiet_cluster() -> None:
    story = Story()
    story.node(0, 0, CPU=2, memory=16.5 * GIB)
    assert (
        status_text(status(story, 3_600_000))
        == f"""\
======== Autoscaler status: 1:00:00 ========
Node status
--------------------------------------------
Active:
 (no active nodes)
Idle:
 1 node_{hex_id("node", 0)}
Pending:
 (no pending nodes)
Recent failures:
 (no failures)

Resources
--------------------------------------------
Total Usage:
 0.0/2.0 CPU
 0B/16.50GiB memory

From request_resources:
 (none)
Pending Demands:
 (no resource demands)"""
    )


def test_usage_is_what_was_published() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    story.node(1, 0, CPU=4, GPU=1)
    story.published(1, 10, {"CPU": 4, "GPU": 1}, {"CPU": 0.5, "GPU": 1})
    before, after = status(story, 9), status(story, 10)
    assert before.usage == {"CPU": (0.0, 6.0), "GPU": (0.0, 1.0)}
    assert after.usage == {"CPU": (3.5, 6.0), "GPU": (0.0, 1.0)}
    assert [n.name for n in before.active] == []
    assert [n.name for n in after.active] == ["node-1"]
    assert after.active[0].activity == ("Resource: CPU currently in use.",)


def test_waiting_tasks_are_demands_until_they_hold_resources() -> None:
    story = as_seen_on_a_laptop()
    assert status(story, 341).demands == (({"CPU": 8.0}, 1),)
    assert status(story, 345).demands == (({"CPU": 8.0}, 1), ({"CPU": 1.0}, 1))
    spec = story.submit(7, options("__main__.f"), 360)
    story.resolved(7, 360)
    story.lease(2, spec, "PENDING_RESOURCES", 361)
    assert ({"CPU": 1.0}, 1) in status(story, 361).demands
    story.lease(2, spec, "PENDING_WORKER", 362)
    assert status(story, 362).demands == (({"CPU": 8.0}, 1),)


def test_an_actor_to_be_placed_is_a_demand_of_its_placement_resources() -> None:
    story = Story()
    opts = actor_options()
    story.actor(3, "PENDING_CREATION", 1, opts)
    assert status(story, 1).demands == (({"CPU": 1.0}, 1),)
    story.actor(3, "ALIVE", 2, opts, address=WorkerAddress(5, "node-0/worker-5", 0))
    assert status(story, 2).demands == ()


def test_pending_group_is_a_demand_by_shape() -> None:
    story = Story()
    story.group(1, "PENDING", 1, (-1, -1, -1), {"CPU": 1}, {"CPU": 1}, {"GPU": 1})
    text = status_text(status(story, 1))
    assert " {'CPU': 1.0} * 2, {'GPU': 1.0} * 1 (PACK): 1+ pending placement groups" in text


def test_dead_nodes_are_failures_and_do_not_count() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    story.node(1, 0, CPU=4)
    story.note("node", 1, "DEAD", 5, node_id=1)
    after = status(story, 5)
    assert after.usage == {"CPU": (0.0, 2.0)}
    node_type = "node_" + hex_id("node", 1)
    assert f" {node_type}: NodeTerminated (instance_id: node-1)" in status_text(after)


def test_request_resources_and_pending_nodes() -> None:
    story = Story()
    pending = (
        PendingNode(node_type="cpu"),
        PendingNode(node_type="cpu"),
        PendingNode(node_type="gpu", launching=False, instance="node-7", details="Starting-Ray"),
    )
    constraints = [ResourceSet.of({"CPU": 4})] * 2
    text = status_text(status(story, 0, pending=pending, constraints=constraints))
    assert "Pending:\n cpu, 2 launching\n node-7: gpu, starting-ray\n" in text
    assert " {'CPU': 4.0}: 2 from request_resources()" in text


def test_what_runs_in_a_placement_group_is_used_and_the_rest_of_it_is_not() -> None:
    usage = {
        "CPU": (2.0, 4.0),
        "CPU_group_0_00ab": (1.0, 2.0),
        "CPU_group_00ab": (1.0, 2.0),
        "bundle_group_00ab": (0.001, 1000.0),
        "node:10.0.0.1": (0.0, 1.0),
        "accelerator_type:H100": (0.0, 1.0),
    }
    assert usage_lines(usage, verbose=False) == [
        "1.0/4.0 CPU (1.0 used of 2.0 reserved in placement groups)"
    ]
    assert "0.0/1.0 accelerator_type:H100" in usage_lines(usage, verbose=True)


def test_verbose_lists_nodes() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    story.node(1, 0, CPU=4)
    story.published(1, 10, {"CPU": 4}, {"CPU": 3})
    text = status_text(status(story, 50), verbose=True)
    assert text.endswith(
        f"""
Node: node-1 (node_{hex_id("node", 1)})
 Id: {hex_id("node", 1)}
 Usage:
  1.0/4.0 CPU
 Activity:
  Resource: CPU currently in use.

Node: node-0 (node_{hex_id("node", 0)})
 Id: {hex_id("node", 0)}
 Idle: 50 ms
 Usage:
  0.0/2.0 CPU
 Activity:
  (no activity)"""
    )


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0B"), (1023, "1023B"), (2**20, "1.00MiB"), (2**43, "8.00TiB")]
)
def test_memory(n_bytes: int, text: str) -> None:
    assert format_memory(n_bytes) == text


def test_clock() -> None:
    assert clock(86_400 * 10**9 + 250_000_000) == "1 day, 0:00:00.250000"


# ---- against Ray itself --------------------------------------------------------------------------


def full() -> ClusterStatus:
    """Everything at once."""
    usage = {
        "CPU": (10.5, 64.0),
        "GPU": (2.0, 8.0),
        "memory": (3.5 * GIB, 128.0 * GIB),
        "object_store_memory": (12.0 * 2**20, 40.0 * GIB),
        "CPU_group_00ab": (1.0, 4.0),
        "CPU_group_0_00ab": (1.0, 4.0),
        "memory_group_00ab": (1.0 * GIB, 2.0 * GIB),
        "bundle_group_00ab": (0.001, 1000.0),
        "node:10.0.0.1": (0.0, 1.0),
        "accelerator_type:H100": (0.0, 1.0),
        "custom": (0.0, 3.0),
    }
    nodes = [
        NodeReport(
            node_id=str(i) * 56,
            name=f"node-{i}",
            node_type=kind,
            usage=usage,
            idle_ms=0 if i < 3 else 90_000,
            activity=("Resource: CPU currently in use.",) if i < 3 else (),
        )
        for i, kind in enumerate(("head", "gpu", "gpu", "cpu", "cpu"))
    ]
    return ClusterStatus(
        t_ns=0,
        active=tuple(nodes[:3]),
        idle=tuple(nodes[3:]),
        pending=(
            PendingNode(node_type="cpu"),
            PendingNode(node_type="cpu"),
            PendingNode(node_type="gpu", launching=False, instance="i-9", details="RAY_INSTALLING"),
        ),
        failures=tuple(f" cpu: NodeTerminated (instance_id: node-{i})" for i in range(30)),
        usage=usage,
        demands=(
            ({"CPU": 1.0}, 5),
            ({"CPU_group_00ab": 1.0, "bundle_group_00ab": 0.001}, 2),
            ({"GPU": 4.0, "CPU": 1.0}, 1),
            ({"bundle_group_00ab": 0.001}, 1),
        ),
        group_demands=(
            GroupDemand(strategy="PACK", state="PENDING", bundles=(({"CPU": 1.0}, 2),)),
            GroupDemand(strategy="PACK", state="PENDING", bundles=(({"CPU": 1.0}, 2),)),
            GroupDemand(strategy="SPREAD", state="PENDING", bundles=(({"GPU": 1.0}, 1),)),
        ),
        constraints=(({"CPU": 4.0}, 2),),
    )


def without_header(text: str) -> list[str]:
    """The date of the real one makes its header, and the lines below headings, longer."""
    return ["---" if set(line) == {"-"} else line for line in text.splitlines()[1:]]


def in_rays_schema(ours: ClusterStatus):
    schema = pytest.importorskip("ray.autoscaler.v2.schema")

    def resources(usage):
        return [schema.ResourceUsage(name, total, used) for name, (used, total) in usage.items()]

    def info(node: NodeReport):
        return schema.NodeInfo(
            instance_type_name="",
            ray_node_type_name=node.node_type,
            instance_id=node.name,
            ip_address=node.name,
            node_id=node.node_id,
            resource_usage=schema.NodeUsage(resources(node.usage), node.idle_ms),
            node_activity=list(node.activity),
        )

    def launch(node: PendingNode):
        pending = schema.LaunchRequest.Status.PENDING
        return schema.LaunchRequest("", node.node_type, 1, pending, 0)

    def by_count(bundles):
        return [schema.ResourceRequestByCount(dict(b), n) for b, n in bundles]

    return schema.ClusterStatus(
        active_nodes=[info(n) for n in ours.active],
        idle_nodes=[info(n) for n in ours.idle],
        pending_launches=[launch(n) for n in ours.pending if n.launching],
        pending_nodes=[
            schema.NodeInfo("", n.node_type, n.instance, "", details=n.details)
            for n in ours.pending
            if not n.launching
        ],
        failed_nodes=[schema.NodeInfo("", "cpu", f"node-{i}", "") for i in range(30)],
        cluster_resource_usage=resources(ours.usage),
        resource_demands=schema.ResourceDemandSummary(
            placement_group_demand=[
                schema.PlacementGroupResourceDemand(
                    by_count(g.bundles), f"id:{g.strategy}|{g.state}"
                )
                for g in ours.group_demands
            ],
            ray_task_actor_demand=[schema.RayTaskActorDemand(by_count([d])) for d in ours.demands],
            cluster_constraint_demand=[schema.ClusterConstraintDemand(by_count(ours.constraints))],
        ),
        stats=schema.Stats(request_ts_s=1),
    )


@pytest.mark.real
@pytest.mark.parametrize("verbose", [False, True])
def test_text_is_rays_line_for_line(verbose: bool) -> None:
    utils = pytest.importorskip("ray.autoscaler.v2.utils")
    real = utils.ClusterStatusFormatter.format(in_rays_schema(full()), verbose)
    assert without_header(status_text(full(), verbose=verbose)) == without_header(real)


@pytest.mark.real
@pytest.mark.parametrize("verbose", [False, True])
def test_text_without_autoscaler_is_rays_line_for_line(verbose: bool) -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    from ray.autoscaler._private.autoscaler import AutoscalerSummary

    ours = full()
    nodes = (*ours.active, *ours.idle)
    metrics = util.LoadMetricsSummary(
        usage=dict(ours.usage),
        resource_demand=list(ours.demands),
        pg_demand=[
            ({"strategy": g.strategy, "bundles": list(g.bundles)}, n)
            for g, n in ((ours.group_demands[0], 2), (ours.group_demands[2], 1))
        ],
        request_demand=[(dict(b), n) for b, n in ours.constraints],
        node_types=[],
        usage_by_node={n.node_id: dict(n.usage) for n in nodes},
        idle_time_map={n.node_id: n.idle_ms for n in nodes},
    )
    summary = AutoscalerSummary(
        active_nodes={"head": 1, "gpu": 2, "cpu": 2},
        idle_nodes={},
        pending_launches={"cpu": 2},
        pending_nodes=[("i-9", "gpu", "RAY_INSTALLING")],
        failed_nodes=[],
        node_type_mapping={n.node_id: n.node_type for n in nodes},
        legacy=True,
    )
    real = util.format_info_string(metrics, summary, verbose=verbose)
    from dataclasses import replace

    plain = [replace(n, activity=()) for n in nodes]
    quiet = replace(ours, failures=(), active=tuple(plain[:3]), idle=tuple(plain[3:]))
    text = status_text(quiet, verbose=verbose, autoscaler=False)
    said, expected = without_header(text), without_header(real)
    assert said == [
        line for i, line in enumerate(expected) if not (verbose and i == 0 and not line)
    ]
