"""Scheduling policies against a plain reading of Ray's, and what each is for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raysim.kernel.simulation import Simulation
from raysim.raycore.config import RayConfig
from raysim.raycore.protocol import LeaseSpec
from raysim.raycore.raylet import policies
from raysim.raycore.raylet.cluster_resource_scheduler import ClusterResourceScheduler
from raysim.raycore.raylet.lease import SchedulingClass
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import UNIT, NodeResources
from raysim.raycore.tasks import LabelMatch, NodeLabels, TaskOptions
from tests.unit.raycore.raylet_parts import options


def plain_least_used(
    nodes: list[tuple[bool, float]], preferred: int, k: int, threshold: float, place: int
) -> int | None:
    """``HybridSchedulingPolicy::GetBestNode``, by sorting."""
    scored = [(0.0 if s < threshold else s, i) for i, (ok, s) in enumerate(nodes) if ok]
    if not scored:
        return None
    scored.sort()
    if preferred >= 0 and nodes[preferred][0]:
        own = nodes[preferred][1]
        if (0.0 if own < threshold else own) <= scored[0][0]:
            return preferred
    return scored[place % min(k, len(scored))][1]


NODES = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, 1.0])),
                 min_size=1, max_size=30)  # fmt: skip


@given(NODES, st.integers(-1, 29), st.integers(1, 8), st.integers(0, 1_000))
def test_least_used_is_rays_order_without_the_sort(
    nodes: list[tuple[bool, float]], preferred: int, k: int, draw: int
) -> None:
    preferred = min(preferred, len(nodes) - 1)
    ok = np.array([n[0] for n in nodes])
    scores = np.array([n[1] for n in nodes])
    chosen = policies.least_used(ok, scores, preferred, k, 0.5, lambda n: draw % n)
    count = min(k, int(ok.sum())) or 1
    assert chosen == plain_least_used(nodes, preferred, k, 0.5, draw % count)


def scheduler(
    nodes: list[dict[str, float]],
    *,
    used: dict[int, dict[str, float]] | None = None,
    labels: list[dict[str, str]] | None = None,
    me: int = 0,
) -> ClusterResourceScheduler:
    view = ResourceView()
    local = None
    for i, resources in enumerate(nodes):
        units = {name: round(n * UNIT) for name, n in resources.items()}
        mine = NodeResources(units, labels[i] if labels else {})
        view.join(i, mine)
        for name, n in ((used or {}).get(i) or {}).items():
            left = dict(view.nodes[i].resources.available)
            left[name] -= round(n * UNIT)
            view.publish(i, left, units, draining=False, pulls_blocked=False)
        if i == me:
            local = NodeResources(units, labels[i] if labels else {})
            local.available = dict(view.nodes[i].resources.available)
    assert local is not None
    env: Any = SimpleNamespace(view=view, config=RayConfig(), sim=Simulation())
    return ClusterResourceScheduler(env, me, local)


def klass(opts: TaskOptions) -> SchedulingClass:
    spec: Any = LeaseSpec(opts, opts.resources, (), None, 1, 0)  # type: ignore[arg-type]
    return SchedulingClass(spec, 10 * UNIT)


def choices(s: ClusterResourceScheduler, k: SchedulingClass, **kwargs: Any) -> set[int | None]:
    return {s.best_node(k, **kwargs) for _ in range(60)}


def test_hybrid_prefers_here_below_half_and_the_least_used_above() -> None:
    nodes = [{"CPU": 10}] * 10
    assert choices(scheduler(nodes, used={0: {"CPU": 4}}), klass(options())) == {0}
    busy = scheduler(nodes, used={0: {"CPU": 6}, 1: {"CPU": 7}})
    assert choices(busy, klass(options())) == {2, 3}  # the best fifth of ten


def test_memory_counts_as_use_and_custom_resources_do_not() -> None:
    nodes = [{"CPU": 10, "memory": 10, "x": 10}] * 2
    assert choices(scheduler(nodes, used={0: {"memory": 8}}), klass(options())) == {1}
    assert choices(scheduler(nodes, used={0: {"x": 8}}), klass(options())) == {0}


def test_gpu_nodes_are_for_gpu_tasks_until_nothing_else_is_free() -> None:
    nodes = [{"CPU": 4, "GPU": 1}, {"CPU": 4}]
    assert choices(scheduler(nodes), klass(options())) == {1}
    assert choices(scheduler(nodes, used={1: {"CPU": 4}}), klass(options())) == {0}
    gpu = klass(options(resources={"GPU": 1}))
    assert choices(scheduler(nodes, me=1), gpu) == {0}


def test_nothing_free_means_waiting_at_a_feasible_node() -> None:
    nodes = [{"CPU": 1}, {"CPU": 4}]
    wide = klass(options(resources={"CPU": 4}))
    assert choices(scheduler(nodes, used={1: {"CPU": 1}}), wide) == {1}
    assert choices(scheduler(nodes), klass(options(resources={"CPU": 5}))) == {None}


def test_sent_here_on_purpose_stays_here_while_there_is_room() -> None:
    s = scheduler([{"CPU": 10}] * 3, used={0: {"CPU": 9}})
    assert choices(s, klass(options())) == {1}
    assert choices(s, klass(options()), prioritize_local=True) == {0}


def test_promises_hold_until_the_node_reports() -> None:
    s = scheduler([{"CPU": 0}, {"CPU": 1}, {"CPU": 1}])
    one = klass(options())
    first = s.best_node(one)
    assert first is not None
    s.promise(first, one.placement)
    second = s.best_node(one)
    assert second is not None
    assert {first, second} == {1, 2}
    s.promise(second, one.placement)
    assert not s.could_take(first, one)
    view = s._view
    total = {"CPU": UNIT}
    view.publish(first, total, total, draining=False, pulls_blocked=False)
    assert choices(s, one) == {first}


def test_draining_nodes_take_no_part() -> None:
    s = scheduler([{"CPU": 1}, {"CPU": 1}], used={0: {"CPU": 1}})
    total = {"CPU": UNIT}
    s._view.publish(1, total, total, draining=True, pulls_blocked=False)
    assert choices(s, klass(options())) == {0}
    s.draining = True
    assert choices(s, klass(options())) == {None}


def test_rare_and_common_custom_resources() -> None:
    nodes = [{"CPU": 1, "everywhere": 1, f"node:{i}": 1} for i in range(100)]
    s = scheduler(nodes, used={0: {"CPU": 1}})
    assert choices(s, klass(options(resources={"node:77": 0.01}))) == {77}
    spread = choices(s, klass(options(resources={"CPU": 1, "everywhere": 1})))
    assert spread <= set(range(1, 21))
    assert len(spread) > 5
    assert "everywhere" in s._view.table().available
    assert "node:77" not in s._view.table().available


def test_labels_filter_and_soft_labels_prefer() -> None:
    labels = [{}, {"zone": "a"}, {"zone": "b"}, {"zone": "b", "disk": "ssd"}]
    s = scheduler([{"CPU": 1}] * 4, labels=labels)
    zone_b = LabelMatch(key="zone", operator="in", values=("b",))
    assert choices(s, klass(options(label_selector=(zone_b,)))) == {2}  # k = 1 of four nodes
    ssd = LabelMatch(key="disk", operator="exists")
    both = NodeLabels(hard=(zone_b,), soft=(ssd,))
    assert choices(s, klass(options(strategy=both))) == {3}
    assert choices(s, klass(options(strategy=NodeLabels(hard=(zone_b,))))) == {2, 3}


def test_an_actor_without_resources_goes_anywhere() -> None:
    s = scheduler([{"CPU": 1}] * 4)
    assert choices(s, klass(options(resources={})), actor=True) == {0, 1, 2, 3}


def test_blocked_pulls_keep_argument_bringers_away_but_not_from_home() -> None:
    s = scheduler([{"CPU": 1}, {"CPU": 1}], used={0: {"CPU": 1}})
    total = {"CPU": UNIT}
    s._view.publish(1, total, total, draining=False, pulls_blocked=True)
    one = klass(options())
    assert s.best_node(one, prioritize_local=True, requires_object_store_memory=True) == 0
    assert s.best_node(one, prioritize_local=True) == 1


def test_stuck_is_forgotten_when_a_node_that_fits_reports() -> None:
    s = scheduler([{"CPU": 1}, {"CPU": 1}], used={0: {"CPU": 1}, 1: {"CPU": 1}})
    one = klass(options())
    assert s.best_node(one, prioritize_local=True) == 0
    s.stuck(one)
    assert s.still_stuck(one)
    none, total = {"CPU": 0}, {"CPU": UNIT}
    s._view.publish(1, none, total, draining=False, pulls_blocked=False)
    assert s.still_stuck(one)
    s._view.publish(1, total, total, draining=False, pulls_blocked=False)
    assert not s.still_stuck(one)
