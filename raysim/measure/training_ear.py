"""Hearing what a step says to ``torch.distributed``: phase, operation, bytes of each collective."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional

WHOLE = {
    # function: operation, and the argument that is the whole buffer
    "all_reduce": ("all_reduce", "tensor"),
    "all_gather_into_tensor": ("all_gather", "output_tensor"),
    "all_gather_single": ("all_gather", "output_tensor"),
    "reduce_scatter_tensor": ("reduce_scatter", "input"),
    "reduce_scatter_single": ("reduce_scatter", "input"),
    "all_to_all_single": ("all_to_all", "input"),
    "broadcast": ("broadcast", "tensor"),
    "reduce": ("reduce", "tensor"),
    "send": ("send", "tensor"),
    "recv": ("recv", "tensor"),
}
Heard = tuple[str, str, int]
"""Phase, operation, bytes of the whole buffer."""


class Ear:
    """Hears every collective that Python calls on ``torch.distributed``, or a ``DTensor`` makes.

    Calls over a group of one rank move nothing and are left out.
    """

    def __init__(self) -> None:
        self.phase = "init"
        self.heard: list[Heard] = []

    def listen(self) -> None:
        """Wrap the functions; before DeepSpeed takes them."""
        for name in WHOLE:
            if hasattr(dist, name):
                setattr(dist, name, self._wrapped(name))
        dist.all_gather = self._listed(dist.all_gather)
        functional.all_reduce = self._functional(functional.all_reduce)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real = getattr(dist, name)
        signature = inspect.signature(real)
        operation, whole = WHOLE[name]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            if dist.get_world_size(given.get("group")) > 1:
                t = given[whole]
                self.heard.append((self.phase, operation, t.numel() * t.element_size()))
            return real(*args, **kwargs)

        return wrapped

    def _listed(self, real: Any) -> Any:
        """Of a list of outputs: FSDP1 gathers so on the CPU."""

        def wrapped(tensor_list: Any, tensor: Any, group: Any = None, **rest: Any) -> Any:
            if dist.get_world_size(group) > 1:
                whole = sum(t.numel() * t.element_size() for t in tensor_list)
                self.heard.append((self.phase, "all_gather", whole))
            return real(tensor_list, tensor, group, **rest)

        return wrapped

    def _functional(self, real: Any) -> Any:
        """Of one dimension of a device mesh: the norm of sharded gradients is summed so."""
        signature = inspect.signature(real)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tensor, _, group, *_ = signature.bind(*args, **kwargs).arguments.values()
            meshed = isinstance(group, tuple)
            ranks = group[0].size(group[1]) if meshed else dist.get_world_size(group)
            if ranks > 1:
                size = tensor.numel() * tensor.element_size()
                self.heard.append((self.phase, "all_reduce", size))
            return real(*args, **kwargs)

        return wrapped

    def runs(self) -> list[list[Any]]:
        """What was heard, with equal neighbours counted."""
        return [[*call, len(list(run))] for call, run in groupby(self.heard)]
