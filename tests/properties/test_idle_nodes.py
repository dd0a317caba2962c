"""Raylets that keep books of idle nodes choose what a look at every node chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.kernel.simulation import Simulation
from raysim.raycore.config import RayConfig
from raysim.raycore.protocol import LeaseSpec
from raysim.raycore.raylet import cluster_resource_scheduler as schedulers
from raysim.raycore.raylet.cluster_resource_scheduler import ClusterResourceScheduler
from raysim.raycore.raylet.lease import SchedulingClass
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import UNIT, NodeResources
from raysim.raycore.tasks import LabelMatch
from tests.unit.raycore.raylet_parts import options

NODES = 150
"""More than two blocks of the books."""
NODE = st.integers(0, NODES - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("choose"), st.sampled_from([0, 0, 0, 1, 2]), st.booleans()),
        st.tuples(st.just("publish"), NODE, st.integers(0, 8), st.booleans()),
        st.tuples(st.just("local"), st.integers(0, 8)),
        st.tuples(st.just("leave"), NODE),
        st.tuples(st.just("join"), NODE),
    ),
    min_size=20, max_size=120,
)  # fmt: skip


def total(node: int) -> dict[str, int]:
    return {"CPU": 8 * UNIT, **({"GPU": UNIT} if node % 7 == 3 else {})}


def labels(node: int) -> dict[str, str]:
    return {"zone": "ab"[node % 2]}


def played(steps: list[tuple[Any, ...]], books_from: int) -> tuple[list[int | None], int]:
    """Every choice, and how many times books were at hand."""
    view, kept = ResourceView(), 0
    for node in range(NODES):
        view.join(node, NodeResources(total(node), labels(node)))
    env: Any = SimpleNamespace(view=view, config=RayConfig(), sim=Simulation())
    local = NodeResources(total(0), labels(0))
    raylet = ClusterResourceScheduler(env, 0, local)
    in_zone_a = LabelMatch(key="zone", operator="in", values=("a",))
    kinds = []
    for opts in (
        options(), options(resources={"CPU": 3}), options(label_selector=(in_zone_a,))
    ):  # fmt: skip
        spec: Any = LeaseSpec(opts, opts.resources, (), None, 1, 0)  # type: ignore[arg-type]
        kinds.append(SchedulingClass(spec, 8 * UNIT))
    chosen: list[int | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedulers, "_BOOKS_FROM", books_from)
        for what, *rest in steps:
            if what == "choose":
                for _ in range(3):
                    node = raylet.best_node(kinds[rest[0]], exclude_local=rest[1])
                    kept += raylet._idle_nodes is not None
                    chosen.append(node)
                    if node:
                        raylet.promise(node, kinds[rest[0]].placement)
            elif what == "publish" and rest[0] in view.nodes:
                free = {**total(rest[0]), "CPU": rest[1] * UNIT}
                view.publish(
                    rest[0], free, total(rest[0]), draining=rest[2] and rest[1] == 0,
                    pulls_blocked=False,
                )  # fmt: skip
            elif what == "local":
                local.available["CPU"] = rest[0] * UNIT
            elif what == "leave" and rest[0]:
                view.leave(rest[0])
            elif what == "join" and rest[0] not in view.nodes:
                view.join(rest[0], NodeResources(total(rest[0]), labels(rest[0])))
    return chosen, kept


@given(STEPS)
def test_books_choose_as_a_look_at_every_node_does(steps: list[tuple[Any, ...]]) -> None:
    assert played(steps, 1)[0] == played(steps, 10**9)[0]


def test_books_are_kept_while_decisions_come_faster_than_changes() -> None:
    steps = [("local", 3), *[("choose", 0, False), ("publish", 9, 4, False)] * 20]
    assert played(steps, 1)[1] > 50
    assert played(steps, 10**9)[1] == 0
