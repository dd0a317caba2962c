"""Values of the few tensors that a forward may branch on: positions, masks, integer inputs.

The meta device has shapes only, yet models ask ``if mask.all()``. Small tensors that were computed
from known ones alone (``arange``, comparisons of it, real integer inputs) are computed beside their
meta twins on the CPU, so that such questions are answered as a real run answers them. What depends
on parameters or on floating-point inputs stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from raysim.tracing.operators import aten_name, tensors

MOST_ELEMENTS = 2**22
"""Larger tensors are not followed."""
_FACTORIES = frozenset(["arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros"])
_CONSTANT = frozenset(["full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"])
"""Take a shape, no values."""
CONSTANT = "raysim_constant"
"""Of a tensor made on the meta device of a list or an array: its values."""
_INDEX = torch.ops.aten.index.Tensor
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Values:
    """Known values by tensor; tensors are kept alive, so that no other takes their identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def learn(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """``tensor`` has the values of the user's ``real`` (copied: a forward may write to it)."""
        if real.device.type == "cpu" and real.numel() <= MOST_ELEMENTS:
            self._remember(tensor, real.detach().clone())

    def _remember(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        self._known[id(tensor)] = (tensor, real)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether its values are known, so that it is kept alive here."""
        if id(tensor) not in self._known and hasattr(tensor, CONSTANT):
            self.learn(tensor, getattr(tensor, CONSTANT))
        return id(tensor) in self._known

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Its values, if they are known."""
        return self._known[id(tensor)][1] if self.has(tensor) else None

    def answer(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any] | None:
        """Result, in a tuple, of an operator that depends on values, if they are known."""
        if not any(tag in func.tags for tag in _TAGS) or not self._knows(args, kwargs):
            return None
        out = self._compute(func, args, kwargs)

        def twin(real: torch.Tensor) -> torch.Tensor:
            made = real.to("meta")
            self._remember(made, real)
            return made

        return (tree_map_only(torch.Tensor, twin, out),)

    def placed(self, func: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
        """What is picked by a mask of known values (SpecAugment's) is picked by its places."""
        if func is not _INDEX or not any(self._is_known_mask(t) for t in args[1]):
            return args
        found: list[torch.Tensor | None] = []
        for part in args[1]:
            if not self._is_known_mask(part):
                found.append(part)
                continue
            for real in self._real(part).nonzero(as_tuple=True):
                found.append(real.to("meta"))
                self._remember(found[-1], real)  # type: ignore[arg-type]
        return args[0], found, *args[2:]

    def _is_known_mask(self, part: torch.Tensor | None) -> bool:
        return part is not None and part.dtype == torch.bool and self.has(part)

    def follow(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: object
    ) -> None:
        """Compute beside the meta device, or forget what an in-place operator made unknown."""
        made = list(tensors(out))
        given = any(True for _ in tensors((args, kwargs)))
        deterministic = torch.Tag.nondeterministic_seeded not in func.tags
        constant = aten_name(func) in _CONSTANT
        start = given or aten_name(func) in _FACTORIES
        small = sum(t.numel() for t in made) <= MOST_ELEMENTS
        if start and small and deterministic and (constant or self._knows(args, kwargs)):
            for t, real in zip(made, tensors(self._compute(func, args, kwargs)), strict=True):
                self._remember(t, real)
        else:
            for t in made:
                self._known.pop(id(t), None)

    def _knows(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return all(self.has(t) for t in tensors((args, kwargs)))

    def _compute(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        real_args, real_kwargs = tree_map_only(torch.Tensor, self._real, (args, dict(kwargs)))
        if real_kwargs.get("device") is not None:
            real_kwargs["device"] = torch.device("cpu")
        return func(*real_args, **real_kwargs)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its values; of one whose shape alone is asked for, any."""
        known = self._known.get(id(tensor))
        return torch.empty_like(tensor, device="cpu") if known is None else known[1]
