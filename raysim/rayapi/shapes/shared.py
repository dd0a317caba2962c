"""What the ranks of a run know together: models that were traced, what they take, what was said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.alike import Made
from raysim.rayapi.shapes.prediction import Forward, Prediction
from raysim.rayapi.shapes.roles import Role, bytes_of, samples_of
from raysim.rayapi.shapes.sizes import Sizes

if TYPE_CHECKING:
    from raysim.training.checkpoint.cost import CheckpointCost

AskedFor = tuple[Any, ...]
"""What makes two forwards alike."""


@dataclass(kw_only=True)
class Paces:
    """What the GPUs of rank 0 take from one step of an optimizer to its next; but for the first."""

    rounds: dict[int, tuple[Any, list[int]]] = field(default_factory=dict)
    """By the optimizer's identity, with it; the last round is under way."""

    def step_taken(self, optimizer: Any, took_ns: int) -> None:
        """Of one optimizer."""
        self.rounds.setdefault(id(optimizer), (optimizer, [0]))
        for owner, rounds in self.rounds.values():
            rounds[-1] += took_ns
            if owner is optimizer:
                rounds.append(0)

    @property
    def round_ns(self) -> int | None:
        """Mean of the optimizer that has most, the earliest of several; None: there is none.

        Not the median: an actor that learns with every other critic makes rounds of two lengths.
        """
        most = max((rounds for _, rounds in self.rounds.values()), key=len, default=[0])
        # the first of them is not whole, since the step before it was no step of this account
        whole = most[1:-1] or most[:-1]
        return round(fmean(whole)) if whole else None


@dataclass(kw_only=True)
class Shared:
    """What the ranks of a run know together."""

    roles: dict[AskedFor, Role] = field(default_factory=dict)
    predictions: dict[Any, Prediction] = field(default_factory=dict)
    forwards: dict[Any, Forward] = field(default_factory=dict)
    shapes: dict[Any, torch.Tensor] = field(default_factory=dict)
    """What functions of torch have made, by what they were given."""
    batches: dict[Any, Made] = field(default_factory=dict)
    """Of data that stand for others, by what they are made of."""
    said: set[str] = field(default_factory=set)
    """What the user has been told."""
    steps: dict[int, tuple[Prediction, int]] = field(default_factory=dict)
    """Optimizer steps under each prediction, of rank 0; by its identity."""
    paces: Paces = field(default_factory=Paces)
    beside: dict[Any, tuple[int, Forward]] = field(default_factory=dict)
    answered: dict[Any, dict[int, Forward]] = field(default_factory=dict)
    """Forwards of a trained model that only answers, by the size of its inputs."""
    """Bytes of inputs, and the first forward of models that are not trained."""
    saves: dict[tuple[int, str], CheckpointCost] = field(default_factory=dict)
    """Of DeepSpeed's checkpoints, by the prediction they are of and what they hold."""
    messages: dict[Any, list[Any]] = field(default_factory=dict)
    """Between two ranks, whose other end nobody has come to yet (``shapes.messages``)."""
    places: dict[int, dict[int, tuple[Any, int]]] = field(default_factory=dict)
    """Node and GPU of ranks that have had messages, by their gang's identity."""
    peers: dict[Any, int] = field(default_factory=dict)
    """Ranks that a model's own collectives share it among, by its signature."""
    sizes: Sizes = field(default_factory=Sizes)
    masks: dict[Any, Any] = field(default_factory=dict)
    """Of blocks, by the function that says what they leave (``shapes.block_masks``)."""
    several: bool = False
    """A step has trained several modules (``shapes.several``)."""
    within_loss: list[Any] = field(default_factory=list)
    """Ranks within ``loss_parallel``."""
    too_large: Prediction | None = None
    """What ran out of memory."""

    def between(
        self, key: AskedFor, args: Any, kwargs: Any, say: Callable[[str], None]
    ) -> Role | None:
        """A forward that nobody has made, if it follows from others that somebody has."""
        found = self.sizes.between(key, self.roles, say)
        if found is not None:
            given = args, kwargs
            found = replace(found, batch=samples_of(given), input_bytes=bytes_of(given))
            self.roles[key] = found
        return found

    def with_others(self, found: Prediction, others: tuple[int, int]) -> Prediction:
        """Beside the weights of others and the script's tensors: one object for all ranks.

        Steps are counted by it.
        """
        if not any(others):
            return found
        with_them = replace(found, beside_bytes=others[0], script_bytes=others[1])
        return self.predictions.setdefault((id(found), others), with_them)
