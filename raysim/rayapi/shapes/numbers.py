"""Numbers that nobody knows: the loss that a script asks for, and what it computes of it.

Real counterpart: a float. It prints as nan and compares as nan does, but is taken to be finite by
whoever asks (``math.isfinite``): scripts that guard against divergence end there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

SAID = (
    "values of tensors are not computed: the loss is nan, and so is what is computed of it "
    "(raysim predicts time and memory of training, not what it learns)"
)

SAID_OF_ANSWERS = (
    "values of tensors are not computed: real numbers are nan, integers 0, conditions False "
    "(raysim predicts time and memory of inference, not what a model says)"
)


class Unknown(float):
    """One of them."""

    __slots__ = ()


def _staying(name: str) -> Callable[..., Any]:
    """What makes another of one."""
    real = getattr(float, name)

    def operate(self: Unknown, *others: Any) -> Any:
        out = real(self, *others)
        return Unknown("nan") if isinstance(out, float) else out

    return operate


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Unknown, f"__{_name}__", _staying(f"__{_name}__"))
    setattr(Unknown, f"__r{_name}__", _staying(f"__r{_name}__"))
for _name in ("__neg__", "__abs__", "__pos__", "__round__"):
    setattr(Unknown, _name, _staying(_name))


def install(r: Replaced) -> None:
    """What a script asks of one."""
    for name, answer in {"isfinite": True, "isnan": False, "isinf": False}.items():
        r.around(math, name, _answering(answer))


def _answering(answer: bool) -> Callable[..., bool]:
    def ask(real: Callable[[Any], bool], _steps: Steps, value: Any) -> bool:
        return answer if isinstance(value, Unknown) else real(value)

    return ask
