"""``torch.compile`` in training workers: what was given to it is marked, and the tracer is told.

Real counterpart: ``torch/__init__.py`` (``compile``), ``torch/_dynamo/eval_frame.py``. Modules stay
themselves, with the ``_orig_mod`` that scripts look for; functions are wrapped. Backends but
inductor change nothing. An optimizer's step, compiled, is one kernel, as a fused one is.

Not modelled: the time that compiling takes, graph breaks, the memory pools of CUDA graphs, products
that ``max-autotune`` would pick, what ``dynamic`` costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from raysim.models.table import Model
from raysim.rayapi.shapes.plans import INSIDE, RecomputedBlock, describe
from raysim.tracing.walk import COMPILED, compiled_function

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_GRAPHS = frozenset({"reduce-overhead", "max-autotune"})
"""Modes that replay CUDA graphs."""


def install(r: Replaced) -> None:
    """``torch.compile`` and ``Module.compile``."""
    r.call(torch, "compile", _compile)
    r.around(
        torch.nn.Module, "compile",
        lambda _real, steps, module, *_a, **options: _compile(steps, module, **options) and None,
    )  # fmt: skip


def _compile(steps: Steps, model: Any = None, **options: Any) -> Any:
    """``torch.compile`` of a module or a function, or as a decorator."""
    if model is None:
        return lambda given: _compile(steps, given, **options)
    if options.get("backend", "inductor") != "inductor" or options.get("disable"):
        return model
    if not isinstance(model, torch.nn.Module):
        return _function(model)
    steps.compiled = True
    steps.cuda_graphs = steps.cuda_graphs or options.get("mode") in _GRAPHS
    _mark(steps, model)
    return model


def _mark(steps: Steps, module: Any) -> None:
    """The module and what it wraps; told before, a model's first step is another one now."""
    inner = getattr(module, INSIDE) if isinstance(module, RecomputedBlock) else module
    for m in (module, inner, describe(module).module):
        object.__setattr__(m, COMPILED, True)
    object.__setattr__(module, "_orig_mod", module)
    steps.forget_signatures()


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    """One whose operators are a region of their own."""

    @wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with compiled_function():
            return function(*args, **kwargs)

    return compiled


def marks(module: Any) -> tuple[str, ...]:
    """Paths of the modules that are compiled."""
    return tuple(path for path, m in module.named_modules() if getattr(m, COMPILED, False))


def is_mostly_compiled(model: Model) -> bool:
    """Whether the host runs a few calls for it; tables that do not say are compiled whole."""
    said = [o.compiled is not False for layer in model.layers for o in layer.body.operators]
    return 2 * sum(said) > len(said)
