"""``Tensor.register_post_accumulate_grad_hook`` in training workers: optimizers within backward.

Real counterpart: ``torch/_tensor.py``; the tutorial on fusing the optimizer's step into backward.
Gradients of weights have no values and are not made one by one, so that hooks run when backward is
over, the last parameter's first. The first optimizer that one of them steps takes the whole step.

Not modelled: that a gradient is free again once its hook has run, which is said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_KEPT = (
    "gradients that a hook's optimizer frees within backward are counted until its end: memory is "
    "an upper bound"
)


def install(r: Replaced) -> None:
    """Hooks on gradients that are complete."""
    r.around(torch.Tensor, "register_post_accumulate_grad_hook", _register)


class Hooks:
    """Of one worker."""

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, tuple[torch.Tensor, Callable[[torch.Tensor], None]]]
        self._hooks = OrderedDict()  # which handles refer to weakly

    def add(self, tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """To be called after each backward."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = tensor, hook
        return handle

    def run(self) -> bool:
        """Call them all; whether there were any."""
        for tensor, hook in reversed(list(self._hooks.values())):
            tensor.grad = torch.empty_like(tensor)
            hook(tensor)
            tensor.grad = None
        return bool(self._hooks)


def _register(
    real: Callable[..., Any], steps: Steps, tensor: torch.Tensor, hook: Callable[..., None]
) -> RemovableHandle:
    """Of a parameter on the GPU."""
    if not tensor.is_meta:
        handle: RemovableHandle = real(tensor, hook)
        return handle
    if not (tensor.requires_grad and tensor.is_leaf):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    return steps.hooks.add(tensor, hook)


def after_backward(steps: Steps) -> None:
    """Run a worker's hooks; a step that one of them took is said to be larger than it is."""
    before = steps.worker.steps
    if steps.hooks.run() and steps.worker.steps > before:
        steps.say(_KEPT)
