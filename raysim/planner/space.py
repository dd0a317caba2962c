"""What may be varied: keys of a scenario with the values to try, and their combinations.

A key is what ``--set`` takes. Where the number of nodes varies and ``train.workers`` does not, the
job takes every GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.errors import Problem, ScenarioError
from raysim.planner.default_space import default_values
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.overrides import short_key

MOST_LOOKS = 64
"""Points that are built to see whether any can be."""
WORKERS = "train.workers"

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

    def outside(self, key: str) -> tuple[Any, ...]:
        """Values just beyond those of a key that would help a job that does not meet its targets.

        More nodes, smaller micro-batches, a higher ZeRO stage, full checkpointing.
        """
        values = self.values.get(key, ())
        if is_nodes(key) and values:
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


def said(choice: Choice) -> str:
    """A choice in a line, by the last parts of its keys."""
    return ", ".join(f"{short_key(key)} {value}" for key, value in choice.items())


def chosen(scenario: AnyScenario, choice: Choice) -> AnyScenario:
    """The scenario of a choice; its workers follow the nodes, where nobody says them.

    Raises
    ------
    ScenarioError
        The choice contradicts the scenario, or itself.
    """
    grows = isinstance(scenario, Scenario) and any(is_nodes(k) for k in choice)
    if grows and not any(k.endswith(WORKERS) for k in choice):
        return scenario.with_({**choice, WORKERS: None})
    return scenario.with_(choice)


def space_of(scenario: AnyScenario, vary: Mapping[str, Sequence[Any]] | None = None) -> Space:
    """The space that was asked for, the scenario's ``vary``, or a sensible one.

    Raises
    ------
    ScenarioError
        A key without values, or one that the scenario does not have; nothing is said, and there is
        nothing sensible.
    """
    asked = vary if vary is not None else scenario.spec.vary
    if asked:
        empty = [key for key, values in asked.items() if not values]
        if empty:
            raise ScenarioError([Problem(message="no values to try", key=key) for key in empty])
        return checked(scenario, Space({key: tuple(values) for key, values in asked.items()}))
    return Space(default_values(scenario))


def checked(scenario: AnyScenario, space: Space) -> Space:
    """The space, if any of its points can be built: a key that is not there refuses all of them.

    Raises
    ------
    ScenarioError
        What the first point is refused for.
    """
    first: ScenarioError | None = None
    for point in itertools.islice(space.points(), 0, None, max(1, space.size // MOST_LOOKS)):
        try:
            chosen(scenario, point.choice)
        except ScenarioError as error:
            first = first or error
        else:
            return space
    assert first is not None, "a space without points"
    raise first
