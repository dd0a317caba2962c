"""Autograd functions that a script calls between its model and ``backward()``.

Real counterpart: ``torch.autograd.Function.apply``, which no mode of torch hears. In a loss
(fused losses, losses gathered over ranks) it is one call of the tape, so that the tracer runs its
backward too; what it exchanges is a part of the step, and is not paid where it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Function

from raysim.rayapi.shapes.here import steps_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_OWN = "raysim.rayapi.shapes."
"""What stands for a module that is not run is none of the script's."""


def install(r: Replaced) -> None:
    """Under torch's name."""
    r.set(Function, "apply", _applied)


def _applied(real: Any) -> Any:
    function = real.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        steps = None if cls.__module__.startswith(_OWN) else steps_here()
        if steps is None or steps.inside or steps.mode.tracing or not steps.between_passes:
            return function(cls, *args, **kwargs)
        tape = steps.mode.tape
        steps.inside, steps.mode.tape = True, None
        try:
            out = function(cls, *args, **kwargs)
        finally:
            steps.inside, steps.mode.tape = False, tape
        if tape is not None:
            tape.note(cls.apply, args, kwargs, out)
        return out

    return classmethod(apply)
