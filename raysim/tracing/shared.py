"""Weights that several operators are given, whose gradients autograd adds up.

Real counterpart: autograd's ``InputBuffer``: the first gradient waits, each further one is added to
it by a kernel of its own, with both in memory. Sparse ones are put one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from raysim.tracing.operators import Call, elements


class Shared:
    """The last operator that was given each weight; ``width`` as in ``Listener``."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._users: dict[int, Call] = {}
        self.sparse: dict[int, int] = {}
        """By identity of a weight, rows of its sparse gradients; 0: one of them is dense."""

    def given(
        self, call: Call, keys: Iterable[int], weights: Mapping[int, torch.nn.Parameter], rows: int
    ) -> None:
        """An operator works on the storages ``keys``; ``rows``: of a sparse gradient it makes."""
        for key in set(keys) & weights.keys() if torch.is_grad_enabled() else ():
            weight = weights[key]
            before = self.sparse.get(id(weight))
            self.sparse[id(weight)] = rows + (before or 0) if rows and before != 0 else 0
            earlier = None if rows else self._users.get(key)
            self._users |= {} if rows else {key: call}
            if earlier is not None and weight.requires_grad:
                earlier.kernels_backward += 1
                earlier.fixed_backward += 3 * elements(weight, self._width)
                earlier.beside = max(earlier.beside, weight.nbytes)
