"""AutoTP's heads and tied embeddings that are divided by vocabulary, and the loss of such logits.

Real counterparts: ``module_inject/layers.py`` (``VocabParallelLinear``, ``VocabParallelEmbedding``)
and ``sequence/cross_entropy.py`` (``VocabParallelCausalLMLoss``) of DeepSpeed 0.19, whose operators
run on shapes. The shards' bounds are taken as checked.

Not modelled: Liger's kernel, embeddings with a forward of their own (refused).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from raysim.rayapi.deepspeed.shared_layers import LinearLayer, summed
from raysim.rayapi.unsupported import NotEmulatedError


class VocabParallelLinear(LinearLayer):
    """``VocabParallelLinear``: logits of a rank's own words."""


class VocabParallelEmbedding(nn.Module):
    """``VocabParallelEmbedding``: a rank's own words, of the weight that its head has cut."""

    def __init__(self, embedding: Any, head: VocabParallelLinear) -> None:
        super().__init__()
        if type(embedding).forward is not nn.Embedding.forward:
            raise NotEmulatedError(
                f"AutoTP of a {type(embedding).__name__} with a tied head",
                "tensor_parallel.vocab_parallel_lm_head: false",
            )
        self.weight, self.mp_group = head.weight, head.mp_group
        self.padding_idx = None
        self.first = dist.get_rank(head.mp_group) * head.weight.shape[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Others' words are zero, before all are summed."""
        last = self.first + self.weight.shape[0]
        outside = (ids < self.first) | (ids >= last)
        own = (ids - self.first).masked_fill(outside, 0)
        out = functional.embedding(own, self.weight, padding_idx=self.padding_idx)
        return summed(self.mp_group, out.masked_fill(outside.unsqueeze(-1), 0.0))


class _CrossEntropy(torch.autograd.Function):
    """``_VocabParallelCrossEntropy``."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, target: torch.Tensor, group: Any, first: int, ignored: int
    ) -> torch.Tensor:
        """Of each token, in fp32: maximum, sum and the target's logit are of all parts."""
        logits, count = given.float(), given.shape[-1]
        most = logits.amax(dim=-1).clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        exponents = torch.exp(logits - most.unsqueeze(-1))
        total = exponents.sum(dim=-1)
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        valid = target != ignored
        here = valid & (target >= first) & (target < first + count)
        place = (target - first).clamp(min=0, max=count - 1)
        own = logits.gather(-1, place.unsqueeze(-1)).squeeze(-1)
        own = torch.where(here, own, torch.zeros_like(own))
        dist.all_reduce(own, op=dist.ReduceOp.SUM, group=group)
        loss = torch.log(total) + most - own
        ctx.save_for_backward(exponents, total, place, here, valid)
        ctx.dtype = given.dtype
        return torch.where(valid, loss, torch.zeros_like(loss))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Without any exchange."""
        exponents, total, place, here, valid = ctx.saved_tensors
        made = exponents / total.unsqueeze(-1)
        made.scatter_add_(-1, place.unsqueeze(-1), -here.unsqueeze(-1).to(dtype=made.dtype))
        made *= valid.unsqueeze(-1).to(dtype=made.dtype)
        made *= gradients[0].to(dtype=made.dtype).unsqueeze(-1)
        return made.to(dtype=ctx.dtype), None, None, None, None


class VocabParallelCausalLMLoss:
    """``VocabParallelCausalLMLoss``: in the place of a model's ``loss_function``."""

    def __init__(self, head: VocabParallelLinear, ignore_index: int = -100) -> None:
        self.group, self.ignored = head.mp_group, ignore_index
        self.first = dist.get_rank(head.mp_group) * head.weight.shape[0]
        self.vocab_size = head.weight.shape[0] * dist.get_world_size(head.mp_group)

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None, num_items_in_batch: Any = None, **_more: Any,
    ) -> torch.Tensor:  # fmt: skip
        """The mean over tokens, or their sum over ``num_items_in_batch``."""
        if shift_labels is None:
            if labels is None:
                raise ValueError("labels or shift_labels must be provided")
            shift_labels = labels[..., 1:].contiguous()
            logits = logits[..., :-1, :].contiguous()
        target = shift_labels.contiguous()
        past = (target < 0) | (target >= self.vocab_size)
        if ((target != self.ignored) & past).any().item():
            raise ValueError(f"Target is out of range for vocabulary size {self.vocab_size}")
        given = (logits, target.to(dtype=torch.long), self.group, self.first, self.ignored)
        each: torch.Tensor = _CrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
        if num_items_in_batch is not None:
            count = torch.as_tensor(num_items_in_batch, device=each.device, dtype=each.dtype)
        else:
            count = (target != self.ignored).sum().to(dtype=each.dtype)
        return each.sum() / count.clamp_min(1)
