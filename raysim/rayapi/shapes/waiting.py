"""Forwards that may learn, of a step of several: which wait for a backward, what they answer with.

Real counterpart: autograd's graph of one call of a module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from raysim.rayapi.shapes.held import held_among
from raysim.rayapi.shapes.input_gradients import graph
from raysim.rayapi.shapes.roles import Recomputing, again, linked
from raysim.tracing.operators import tensors


@dataclass(eq=False, kw_only=True)
class Call:
    """A module's forward that may learn."""

    module: Any
    key: Any
    given: tuple[Any, Any]
    outputs: Any
    born: int
    """Steps taken before."""
    recomputes: Recomputing
    half: torch.dtype | None
    starts: set[Any] = field(default_factory=set)
    """Where autograd's graph of its outputs begins."""
    training: bool = True
    charged: bool = False
    """Its forward has been paid without a backward."""
    paid_ns: int = 0  # where it ran

    def waits(self) -> bool:
        """For a backward: an evaluation whose outputs nobody has any more does not."""
        return self.training or bool(held_among(tensors(self.outputs)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Once more."""
        return self.module(*args, **kwargs)

    def kind(self) -> Any:
        """What makes two of them alike."""
        return kind_of(self.module, self.key, self.given)

    def alike(self, other: Call) -> bool:
        """Of the same module, and as large."""
        return self.key == other.key and self.module is other.module


def kind_of(module: Any, key: Any, given: Any) -> Any:
    """What makes two of a module's calls alike."""
    learns = tuple(p.requires_grad for p in module.parameters())
    asks = tuple(t.requires_grad for t in tensors(given))
    return id(module), key, learns, asks


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a module gives where it is not run again."""

    outputs: Any
    trained: torch.nn.Parameter | None
    """One of its parameters that learn."""
    leads_to: tuple[bool, ...]
    """Which of the tensors that it is given its graph comes to."""
    recomputes: Recomputing
    half: torch.dtype | None

    @classmethod
    def of(cls, call: Call) -> Answer:
        """Of a call that was run."""
        nodes = {n for t in tensors(call.outputs) for n in graph(t)}
        return cls(
            outputs=again(call.outputs), recomputes=call.recomputes, half=call.half,
            trained=next((p for p in call.module.parameters() if p.requires_grad), None),
            leads_to=tuple(
                t.requires_grad and (t.is_leaf or t.grad_fn in nodes) for t in tensors(call.given)
            ),
        )  # fmt: skip

    def again(self, args: Any, kwargs: Any) -> Any:
        """Of other tensors."""
        given = tensors((args, kwargs))
        asked = [t for t, leads in zip(given, self.leads_to, strict=True) if leads]
        return linked(self.outputs, [*asked, *([] if self.trained is None else [self.trained])])
