"""Layers that AutoTP's ranks have a part of each, and what they exchange.

Real counterpart: ``deepspeed/module_inject/layers.py`` of 0.19, of even parts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Copied(torch.autograd.Function):
    """``ColumnParallel``: what every part reads; its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, group: Any, given: torch.Tensor) -> torch.Tensor:
        """As it is."""
        ctx.group = group
        return given

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Of all parts."""
        dist.all_reduce(gradients[0].contiguous(), group=ctx.group)
        return None, gradients[0]


class _Summed(torch.autograd.Function):
    """``RowParallel``: the sum of what each part makes."""

    @staticmethod
    def forward(_ctx: Any, group: Any, given: torch.Tensor) -> torch.Tensor:
        """Of all parts."""
        dist.all_reduce(given.contiguous(), group=group)
        return given

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """As it is."""
        return None, gradients[0]


class _Gathered(torch.autograd.Function):
    """``GatherFromTensorParallelRegion``: columns of all parts, side by side."""

    @staticmethod
    def forward(ctx: Any, group: Any, given: torch.Tensor, parts: int) -> torch.Tensor:
        """One gather of rows, and a copy."""
        ctx.width = given.shape[-1]
        ctx.at = dist.get_rank(group) * ctx.width
        given = given.contiguous()
        whole = given.new_empty((parts * given.shape[0], *given.shape[1:]))
        dist.all_gather_into_tensor(whole, given, group=group)
        return torch.cat(list(whole.view(parts, *given.shape)), dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The rank's own."""
        return None, gradients[0].narrow(-1, ctx.at, ctx.width).contiguous(), None


class Shared(nn.Module):
    """A rank's part of a linear layer, whose parameters stay the objects that they were."""

    def __init__(self, layer: Any, group: Any, ways: int, dim: int, *, gathers: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.mp_group, self.ways, self.gather_output = group, ways, gathers
        _cut(self.weight, group, ways, dim)
        if dim == 0 and self.bias is not None:
            _cut(self.bias, group, ways, 0)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight.transpose(-1, -2))

    def _biased(self, out: torch.Tensor) -> torch.Tensor:
        return out if self.bias is None else out + self.bias


class LinearLayer(Shared):
    """``deepspeed.module_inject.layers.LinearLayer``: its own outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a whole input; of all parts if the layer gathers."""
        x = Copied.apply(self.mp_group, x)  # type: ignore[no-untyped-call]
        out = self._biased(self._product(x))
        if self.gather_output:
            out = _Gathered.apply(self.mp_group, out, self.ways)  # type: ignore[no-untyped-call]
        return out


class LinearAllreduce(Shared):
    """``deepspeed.module_inject.layers.LinearAllreduce``: its own inputs; the bias is whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all parts."""
        return self._biased(summed(self.mp_group, self._product(x)))


def summed(group: Any, given: torch.Tensor) -> torch.Tensor:
    """The sum of what each part makes."""
    out: torch.Tensor = _Summed.apply(group, given)  # type: ignore[no-untyped-call]
    return out


def _cut(p: torch.Tensor, group: Any, ways: int, dim: int) -> None:
    """Leave the rank's own of it."""
    part = p.data.chunk(ways, dim)[dist.get_rank(group)]
    p.data = part.detach().clone()
    p.tensor_model_parallel = True  # type: ignore[attr-defined]
