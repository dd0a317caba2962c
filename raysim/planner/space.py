"""What may be varied: keys of a scenario with the values to try, and their combinations.

A key is what ``--set`` takes. Where the number of nodes varies and ``train.workers`` does not, the
job takes every GPU. A key ``together`` (or ``together.x``) has mappings as its values: keys that
change as one, such as a price and how often its nodes are taken back, and a ``name`` to show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.errors import Problem, ScenarioError
from raysim.hardware import catalog
from raysim.planner.default_space import default_values
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.overrides import labels, shown

MOST_LOOKS = 64
"""Points that are built to see whether any can be."""
WORKERS = "train.workers"
TOGETHER = "together"
NAME = "name"
"""What a mapping of keys is called, if it has one."""
ANY = "any"
"""As the one value of a ``node``: every node of the catalog that could stand there."""
OF_A_NODE = ("nics", "gpu", "gpus")
GOLDEN = (math.sqrt(5) - 1) / 2

Choice = dict[str, Any]


class Point(NamedTuple):
    """One combination."""

    number: int
    choice: Choice


@dataclass(frozen=True, slots=True)
class Space:
    """Values to try, by key, in the order in which they were given."""

    values: Mapping[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """Combinations."""
        return math.prod(len(v) for v in self.values.values())

    def points(self) -> Iterator[Point]:
        """All of them; the last key varies fastest."""
        for number, combination in enumerate(itertools.product(*self.values.values())):
            yield Point(number, dict(zip(self.values, combination, strict=True)))

    def at(self, number: int) -> Point:
        """The point of a number."""
        left, picked = number, []
        for values in reversed(tuple(self.values.values())):
            left, which = divmod(left, len(values))
            picked.append(values[which])
        return Point(number, dict(zip(self.values, reversed(picked), strict=True)))

    def sample(self, count: int) -> Iterator[Point]:
        """So many points, spread evenly: every one is a golden section further."""
        stride = max(1, round(self.size * GOLDEN))
        while math.gcd(stride, self.size) > 1:
            stride += 1
        return (self.at(i * stride % self.size) for i in range(min(count, self.size)))

    def near(self, number: int) -> Iterator[int]:
        """Numbers of the points that differ in one key."""
        stride = 1
        for values in reversed(tuple(self.values.values())):
            which = number // stride % len(values)
            yield from (number + (i - which) * stride for i in range(len(values)) if i != which)
            stride *= len(values)

    def outside(self, key: str) -> tuple[Any, ...]:
        """Values just beyond those of a key that would help a job that does not meet its targets.

        More nodes, smaller micro-batches, a higher ZeRO stage, full checkpointing.
        """
        values = self.values.get(key, ())
        if (is_nodes(key) or key.endswith("replicas")) and values:
            return (2 * max(values), 4 * max(values))
        if key == "train.micro_batch" and values and min(values) > 1:
            return (1,)
        if key == "train.zero_stage" and 3 not in values:
            return (3,)
        if key == "train.activation_checkpointing" and "full" not in values:
            return ("full",)
        return ()


def is_nodes(key: str) -> bool:
    """Whether a key says how many nodes there are."""
    return key == "cluster.nodes" or (key.startswith("cluster.") and key.endswith(".replicas"))


def is_node(key: str) -> bool:
    """Whether a key says what a node is."""
    return key.startswith("cluster.") and key.endswith(".node")


def is_together(key: str) -> bool:
    """Whether the values of a key are mappings of keys."""
    return key.split(".", maxsplit=1)[0] == TOGETHER


def spread_out(choice: Choice) -> Choice:
    """A choice by the scenario's keys: what changes together, one by one."""
    found: Choice = {}
    for key, value in choice.items():
        found |= value if is_together(key) else {key: value}
    found.pop(NAME, None)
    return found


def said(choice: Choice) -> str:
    """A choice in a line, by the last parts of its keys."""
    label = labels(choice)
    return ", ".join(f"{label[key]} {shown(value)}" for key, value in choice.items())


def chosen(scenario: AnyScenario, choice: Choice) -> AnyScenario:
    """The scenario of a choice.

    Its workers follow the nodes, where nobody says them. What the scenario says of a node (its
    price, its NICs, its GPUs) does not hold for another.

    Raises
    ------
    ScenarioError
        The choice contradicts the scenario, or itself.
    """
    changes = spread_out(choice)
    follows = following(scenario, changes)
    return scenario.with_({**_no_longer(scenario, changes), **changes, **follows})


def with_batch_held(scenario: AnyScenario) -> AnyScenario:
    """The scenario with the samples of a step in place of the accumulation that made them.

    Layouts that raysim thinks of are then the same training. Files that say the samples are as
    they were.
    """
    if not isinstance(scenario, Scenario) or scenario.strategy.megatron is not None:
        return scenario
    train = scenario.spec.train
    if train.global_batch is not None or train.global_batch_tokens is not None:
        return scenario
    samples = scenario.strategy.batch.train
    return scenario.with_(
        {"train.global_batch": samples, "train.gradient_accumulation_steps": None}
    )


def following(scenario: AnyScenario, keys: Iterable[str]) -> Choice:
    """What goes with a choice of ``keys``: workers that follow the nodes, unless they are said."""
    named = list(keys)
    grows = isinstance(scenario, Scenario) and any(is_nodes(k) for k in named)
    return {WORKERS: None} if grows and not any(k.endswith(WORKERS) for k in named) else {}


def _no_longer(scenario: AnyScenario, changes: Choice) -> Choice:
    """Keys of the scenario that do not hold for the nodes of a choice."""
    own = {g.name: g.node.name for g in scenario.cluster.groups}
    said = scenario.document.data["cluster"]
    found: Choice = {}
    prices = dict(said.get("prices") or {})
    for key, node in changes.items():
        if not is_node(key) or own.get(name := _group(scenario, key)) == node:
            continue
        if prices.pop(name, None) is not None:
            found["cluster.prices"] = prices
        hardware = (said.get("hardware") or {}).get(name) or said
        prefix = key.removesuffix("node")
        found |= {f"{prefix}{part}": None for part in OF_A_NODE if hardware.get(part) is not None}
    return found


def _group(scenario: AnyScenario, key: str) -> str:
    """The group whose node a key says."""
    named = key.removeprefix("cluster.").removeprefix("hardware.").removesuffix("node").rstrip(".")
    workers = [g.name for g in scenario.cluster.groups if not g.head]
    return named or (workers[0] if workers else "")


def space_of(scenario: AnyScenario, vary: Mapping[str, Sequence[Any]] | None = None) -> Space:
    """The space that was asked for, the scenario's ``vary``, or a sensible one.

    Raises
    ------
    ScenarioError
        A key without values, or one that the scenario does not have; nothing is said, and there is
        nothing sensible.
    """
    asked = vary if vary is not None else scenario.spec.vary
    if not asked:
        return Space(default_values(scenario))
    problems = [Problem(message="no values to try", key=k) for k, v in asked.items() if not v]
    problems += [
        Problem(message="its values are mappings of keys that change as one", key=key)
        for key, values in asked.items()
        if is_together(key) and not all(isinstance(value, dict) for value in values)
    ]
    if problems:
        raise ScenarioError(problems)
    values = {key: _every(scenario, key, tuple(found)) for key, found in asked.items()}
    return checked(scenario, Space(values))


def _every(scenario: AnyScenario, key: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``any`` as names: nodes of the same provider that have a price and as many GPUs.

    Raises
    ------
    ScenarioError
        There are none.
    """
    if not is_node(key) or values != (ANY,):
        return values
    group = _group(scenario, key)
    own = next((g.node for g in scenario.cluster.groups if g.name == group), None)
    if own is None or own.gpu is None:
        raise ScenarioError(Problem(message="any: say which nodes; it has no GPUs now", key=key))
    nodes = [catalog.node(name) for name in catalog.names("node")]
    return tuple(
        node.name
        for node in nodes
        if node.gpu_count == own.gpu_count
        and node.usd_per_hour is not None
        and node.provider == own.provider
    )


def checked(scenario: AnyScenario, space: Space) -> Space:
    """The space, if any of its points can be built: a key that is not there refuses all of them.

    Raises
    ------
    ScenarioError
        What the first point is refused for.
    """
    first: ScenarioError | None = None
    for point in space.sample(MOST_LOOKS):
        try:
            chosen(scenario, point.choice)
        except ScenarioError as error:
            first = first or error
        else:
            return space
    assert first is not None, "a space without points"
    raise first
