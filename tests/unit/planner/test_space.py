"""Spaces: combinations, defaults, what follows from a choice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.planner.space import Space, chosen, space_of
from tests.unit.planner.parts import NODES, scenario


@given(st.dictionaries(st.text(min_size=1), st.lists(st.integers(), min_size=1), max_size=4))
def test_points_are_all_combinations_each_once(values):
    space = Space({key: tuple(dict.fromkeys(v)) for key, v in values.items()})
    points = list(space.points())
    assert len(points) == space.size == math.prod(len(v) for v in space.values.values())
    assert [p.number for p in points] == list(range(space.size))
    assert len({tuple(p.choice.items()) for p in points}) == space.size


def test_the_scenarios_own_space_is_taken():
    own = scenario(vary={"train.micro_batch": [1, 2]})
    assert space_of(own).values == {"train.micro_batch": (1, 2)}
    asked = space_of(own, {"train.zero_stage": [2]})
    assert asked.values == {"train.zero_stage": (2,)}


def test_a_space_where_nobody_says_one():
    space = space_of(scenario())
    assert space.values[NODES] == (1, 2, 4)
    assert space.values["train.zero_stage"] == (1, 2, 3)
    assert space.values["train.micro_batch"][0] == 1
    assert space.values["train.activation_checkpointing"] == ("none", "full")


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({"train.micro_batch": []}, "no values to try"),
        ({"train.micro_batsh": [1]}, "unknown key 'micro_batsh'"),
        ({"cluster.workers.replicas": [1, 2]}, "no group 'workers'"),
    ],
)
def test_what_cannot_be_varied_is_said(vary, said):
    with pytest.raises(ScenarioError, match=said):
        space_of(scenario(), vary)


def test_workers_follow_nodes_unless_they_are_said():
    assert chosen(scenario(), {NODES: 2}).strategy.mesh.world == 8
    assert chosen(scenario(), {NODES: 2, "train.workers": 4}).strategy.mesh.world == 4
    assert chosen(scenario(), {"train.micro_batch": 2}).strategy.mesh.world == 4


def test_beyond_a_space_lies_what_would_help():
    space = Space({NODES: (1, 2), "train.micro_batch": (2, 4), "train.zero_stage": (1, 2)})
    assert space.outside(NODES) == (4, 8)
    assert space.outside("train.micro_batch") == (1,)
    assert space.outside("train.zero_stage") == (3,)
    assert space.outside("train.tensor_parallel") == ()
