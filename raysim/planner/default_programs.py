"""What is tried of Ray programs when nobody says: sizes and bounds of the cluster, and of the job.

Runs of programs take seconds each, so few values of few keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import NodeGroup
from raysim.scenario.documents import value_at

if TYPE_CHECKING:
    from raysim.scenario.program import ProgramScenario

FACTORS = (0.5, 1, 2)
"""Sizes, over the scenario's."""
DEGREES = (1, 2, 4, 8)
SHARES = (0, 0.5, 1)
"""Of nodes that may be taken back."""
SHARE, MARKET, SIZE = "together.spot_share", "together.market", "together.size"

Values = dict[str, tuple[Any, ...]]


def values_of_program(scenario: ProgramScenario) -> Values:
    """Values by key.

    Raises
    ------
    ScenarioError
        A cluster of one node for a program of the user's: nothing that is sure to matter.
    """
    groups = [g for g in scenario.cluster.groups if not g.head and (g.count or g.max_count)]
    library = scenario.spec.jobs[0].library
    spot = _spot(scenario, groups)
    values = dict(spot)
    if library == "trainer" and len(groups) == 1:
        values |= _of_trainer(scenario, groups[0])
    elif SHARE not in spot:
        for group in groups:
            values |= sizes(scenario, group, FACTORS)
    if len(scenario.spec.jobs) == 1:
        values |= _OF_LIBRARY.get(library or "", lambda _: {})(scenario)
    values = {key: found for key, found in values.items() if len(found) > 1}
    if not values:
        message = "say what to try, with --vary KEY=VALUE,VALUE or `vary` in the scenario"
        raise ScenarioError(Problem(message=message))
    return values


def sizes(scenario: Any, group: NodeGroup, factors: Iterable[float]) -> Values:
    """How many nodes; of a group that the autoscaler sizes, its bounds."""
    if scenario.spec.cluster.nodes is not None:
        return {"cluster.nodes": _times(group.count, factors)}
    key, most = f"cluster.{group.name}", group.max_count or group.count
    if most == group.min_count:
        return {f"{key}.replicas": _times(group.count, factors)}
    return {
        f"{key}.max_replicas": _times(most, factors),
        f"{key}.min_replicas": tuple(sorted({group.min_count, most})),
    }


def _times(count: int, factors: Iterable[float]) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(count * f)) for f in factors}))


def _spot(scenario: ProgramScenario, groups: list[NodeGroup]) -> Values:
    """Which share is taken back: of two groups of one machine, or of one whose price is said."""
    prices = value_at(scenario.document.data, ("cluster", "prices")) or {}
    for name in scenario.spec.spot:
        group = next(g for g in groups if g.name == name)
        twin = next(
            (g for g in groups if g.node == group.node and g.name not in scenario.spec.spot), None
        )
        if twin is not None:
            return {SHARE: tuple(_shared(group, twin, share) for share in SHARES)}
        if name in prices and group.node.usd_per_hour is not None:
            others = {key: price for key, price in prices.items() if key != name}
            others_spot = {k: dict(v) for k, v in _written(scenario, "spot").items() if k != name}
            demand = {"name": "on-demand", "spot": others_spot, "cluster.prices": others}
            return {MARKET: ({"name": "spot"}, demand)}
    return {}


def _written(scenario: ProgramScenario, key: str) -> dict[str, Any]:
    return value_at(scenario.document.data, (key,)) or {}


def _shared(spot: NodeGroup, demand: NodeGroup, share: float) -> dict[str, Any]:
    """As many nodes in all; of groups that the autoscaler sizes, at most."""
    grow = any((g.max_count or g.count) > g.min_count for g in (spot, demand))
    nodes = sum((g.max_count or g.count) if grow else g.count for g in (spot, demand))
    key, taken = "max_replicas" if grow else "replicas", round(nodes * share)
    return {
        "name": f"{taken} of {nodes}", f"cluster.{spot.name}.{key}": taken,
        f"cluster.{demand.name}.{key}": nodes - taken,
    }  # fmt: skip


def _of_trainer(scenario: ProgramScenario, group: NodeGroup) -> Values:
    """Nodes and workers as one; and how often to save, where nodes go."""
    said = scenario.spec.jobs[0].trainer
    assert said is not None, "asked of a trainer"
    values: Values = {}
    resized = []
    for count in _times(group.count, FACTORS):
        share = count / group.count
        workers = said.num_workers
        resized.append({
            "name": f"{count} nodes",
            **dict.fromkeys((k for k in sizes(scenario, group, (1,)) if "min" not in k), count),
            "trainer.num_workers": _resized(workers, share),
        })  # fmt: skip
    values[SIZE] = tuple(resized)
    every = None if said.train is None else said.train.checkpoint.every
    if scenario.spec.spot and isinstance(every, float):
        values["trainer.train.checkpoint.every"] = tuple(f"{every * f:g}s" for f in FACTORS)
    return values


def _resized(workers: int | tuple[int, int], share: float) -> int | list[int]:
    if isinstance(workers, int):
        return max(1, round(workers * share))
    return [max(1, round(w * share)) for w in workers]


def _of_serve(scenario: ProgramScenario) -> Values:
    """Replicas of every deployment, or the bounds of those that are autoscaled."""
    said = scenario.spec.jobs[0].serve
    assert said is not None, "asked of an application"
    values: Values = {}
    for i, deployment in enumerate(said.deployments):
        key, bounds = f"serve.deployments.{i}", deployment.autoscaling_config
        if bounds is None:
            continue  # a fixed number is the user's decision; autoscaling asks for bounds
        values[f"{key}.autoscaling_config.min_replicas"] = tuple(
            sorted({bounds.min_replicas, max(1, 2 * bounds.min_replicas)})
        )
        values[f"{key}.autoscaling_config.max_replicas"] = _times(bounds.max_replicas, FACTORS)
    if not values:
        most = max(range(len(said.deployments)), key=lambda i: said.deployments[i].num_replicas)
        count = said.deployments[most].num_replicas
        values[f"serve.deployments.{most}.num_replicas"] = _times(count, FACTORS)
    return values


def _of_llm(scenario: ProgramScenario) -> Values:
    """Replicas and tensor parallelism, within a node's GPUs."""
    said = scenario.spec.jobs[0].llm
    assert said is not None, "asked of a fleet"
    gpus = max((g.node.gpu_count for g in scenario.cluster.groups), default=0)
    own = said.engine_kwargs.get("tensor_parallel_size", 1)
    return {
        "llm.replicas": _times(said.replicas, FACTORS),
        "llm.engine_kwargs.tensor_parallel_size": tuple(
            d for d in DEGREES if d <= gpus and d in (own, 2 * own)
        ),
    }


def _of_rl(scenario: ProgramScenario) -> Values:
    said = scenario.spec.jobs[0].rl
    assert said is not None, "asked of RLlib"
    return {} if said.env_runners is None else {"rl.env_runners": _times(said.env_runners, FACTORS)}


_OF_LIBRARY = {"serve": _of_serve, "llm": _of_llm, "rl": _of_rl}
