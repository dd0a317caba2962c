"""Gates of ``deepspeed.moe``: which expert takes which token, and at which of its places.

Real counterpart: ``deepspeed/moe/sharded_moe.py`` of 0.19 (``top1gating``, ``top2gating``,
``topkgating`` with ``sparse_routes``): the same operators, in fp32, on shapes.

Simplification: the largest share of tokens, which decides on the capacity without ``drop_tokens``,
is the mean (told).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raysim.rayapi.shapes.here import steps_here
from raysim.tracing.peers import EXPERTS

BALANCED = (
    "MoE(drop_tokens=False): how many tokens its fullest expert gets is not known; every expert is "
    "taken to get as many (drop_tokens=True and a capacity_factor say how many at most)"
)
_READS = {1: 4}
"""Times that the host asks for the capacity without ``drop_tokens``: ``min`` twice, ``topk``,
``int``; by ``k``. The others ask once."""
_EPSILON = 1e-2
"""``multiplicative_jitter``."""


@dataclass(frozen=True, kw_only=True)
class Routed:
    """What a gate decides: places of ``k`` routes per token."""

    l_aux: torch.Tensor
    capacity: int
    num_experts: int
    indices: torch.Tensor
    locations: torch.Tensor
    gates: torch.Tensor
    exp_counts: torch.Tensor


def _capacity(tokens: int, experts: int, factor: float, least: int) -> int:
    """Places of each expert, as fp32 has them."""
    return max(ceil(np.float32(tokens / experts) * np.float32(factor)), least)


def _uniform(like: torch.Tensor, low: float = 0.0) -> torch.Tensor:
    """``torch.distributions.Uniform.rsample``: draw, width, scale, shift."""
    width = like.new_ones(())
    return torch.rand(like.shape, device=like.device) * width + low


def _gumbel(like: torch.Tensor) -> torch.Tensor:
    """``torch.distributions.Gumbel.rsample``: two logarithms, each shifted and scaled."""
    inner = (_uniform(like).log() * -1.0) + 0.0
    return (inner.log() * -1.0) + 0.0


def _balance(gates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean share of the gates times that of the tokens, by expert."""
    return torch.mean(gates, dim=0) * torch.mean(mask.float(), dim=0)


def _fullest(counts: torch.Tensor, tokens: int, k: int, ranks: int, among: str) -> int:
    """Capacity for all tokens: the fullest expert's, of all ranks that share experts."""
    most = torch.max(counts)
    if ranks > 1:
        most = torch.ops._c10d_functional.all_reduce(most, "max", among)  # noqa: SLF001
    most = torch.ceil(most / 1).mul(1).to(most.dtype)  # of tensor-parallel ranks, one
    steps = steps_here()
    if steps is not None:
        steps.say(BALANCED)
        for _ in range(_READS.get(k, 1) if steps.mode.tracing else 0):
            most.item()
    return ceil(k * tokens / counts.shape[0])


class TopKGate(nn.Module):
    """``deepspeed.moe.sharded_moe.TopKGate``."""

    def __init__(
        self, model_dim: int, num_experts: int, k: int = 1, capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0, min_capacity: int = 8,
        noisy_gate_policy: str | None = None, drop_tokens: bool = True, use_rts: bool = True,
        ep_group: Any = None, top2_2nd_expert_sampling: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wg = nn.Linear(model_dim, num_experts, bias=False)
        self.k, self.drop_tokens, self.use_rts = k, drop_tokens, use_rts
        self.capacity_factor, self.eval_capacity_factor = capacity_factor, eval_capacity_factor
        self.min_capacity, self.noisy_gate_policy = min_capacity, noisy_gate_policy
        self.top2_2nd_expert_sampling = top2_2nd_expert_sampling
        self.ranks, self.among = 1, EXPERTS
        self.gate_time, self.wall_clock_breakdown = 0.0, False
        self._set_ep_group(ep_group)

    def _set_ep_group(self, ep_group: Any) -> None:
        self.ranks = 1 if ep_group is None else ep_group.size()

    @property
    def _factor(self) -> float:
        return self.capacity_factor if self.training else self.eval_capacity_factor

    def forward(self, tokens: torch.Tensor, used_token: Any = None) -> Routed:
        """Of tokens in a row."""
        given = tokens.float()
        if self.noisy_gate_policy == "Jitter" and self.training:
            given = given * _uniform(given, 1.0 - _EPSILON)
        logits = functional.linear(given, weight=self.wg.weight.float(), bias=None)
        if self.k == 1:
            return self._top1(logits, used_token)
        return self._top2(logits) if self.k == 2 else self._topk(logits)

    def _place(self, counts: torch.Tensor, tokens: int) -> int:
        """Capacity: the configured one, or enough for all."""
        experts = counts.shape[0]
        if self.drop_tokens:
            return _capacity(tokens, experts, self._factor * self.k, self.min_capacity)
        return _fullest(counts, tokens, self.k, self.ranks, self.among)

    def _top1(self, logits: torch.Tensor, used: Any) -> Routed:
        noisy = self.noisy_gate_policy == "RSample" and self.training
        scores = logits + _gumbel(logits) if noisy else None
        gates = functional.softmax(logits, dim=1)
        chosen = torch.argmax(gates if scores is None else scores, dim=1)
        tokens, experts = gates.shape
        mask = functional.one_hot(chosen, num_classes=experts)
        if used is not None:
            mask = torch.einsum("s,se->se", used, mask)
        counts = torch.sum(mask, dim=0).detach()
        capacity = self._place(counts, tokens)
        l_aux = torch.sum(_balance(gates, mask)) * experts
        drawn = mask * _uniform(gates) if self.use_rts else mask
        assert tokens >= self.min_capacity, (
            "No. of tokens (batch-size) should be greater than min_capacity. Either set "
            "min_capacity to 0 or increase your batch size."
        )
        top = torch.topk(drawn, k=min(capacity, tokens), dim=0)[1]
        mask = mask * torch.zeros_like(mask).scatter_(0, top, 1)
        chosen = torch.min(chosen, mask.sum(dim=1) * experts - 1)
        locations = torch.cumsum(mask, dim=0) - 1
        shares = (gates * mask).sum(dim=1)
        places = torch.sum(locations * mask, dim=1)
        return Routed(
            l_aux=l_aux, capacity=capacity, num_experts=experts,
            indices=chosen.to(torch.int32).unsqueeze(0),
            locations=places.to(torch.int32).unsqueeze(0), gates=shares.unsqueeze(0),
            exp_counts=counts,
        )  # fmt: skip

    def _top2(self, logits: torch.Tensor) -> Routed:
        gates = functional.softmax(logits, dim=1)
        tokens, experts = gates.shape
        first = torch.argmax(gates, dim=1)
        mask1 = functional.one_hot(first, num_classes=experts)
        if self.top2_2nd_expert_sampling:
            logits = logits + _gumbel(logits)
        second = torch.argmax(logits.masked_fill(mask1.bool(), float("-inf")), dim=1)
        mask2 = functional.one_hot(second, num_classes=experts)
        locations1 = torch.cumsum(mask1, dim=0) - 1
        locations2 = torch.cumsum(mask2, dim=0) - 1
        locations2 += torch.sum(mask1, dim=0, keepdim=True)
        l_aux = torch.mean(_balance(gates, mask1)) * experts * experts
        counts = torch.sum(mask1 + mask2, dim=0).detach()
        capacity = self._place(counts, tokens)
        if self.drop_tokens:
            mask1 *= torch.lt(locations1, capacity)
            mask2 *= torch.lt(locations2, capacity)
        places = [torch.sum(locations1 * mask1, dim=1), torch.sum(locations2 * mask2, dim=1)]
        shares = [torch.einsum("se,se->s", gates, mask.float()) for mask in (mask1, mask2)]
        whole = torch.clamp(shares[0] + shares[1], min=torch.finfo(gates.dtype).eps)
        shares = [share / whole for share in shares]
        kept = [
            torch.where(mask.any(dim=1), index, torch.full_like(index, -1))
            for mask, index in ((mask1, first), (mask2, second))
        ]
        return Routed(
            l_aux=l_aux, capacity=capacity, num_experts=experts,
            indices=torch.stack(kept).to(torch.int32),
            locations=torch.stack(places).to(torch.int32), gates=torch.stack(shares),
            exp_counts=counts,
        )  # fmt: skip

    def _topk(self, logits: torch.Tensor) -> Routed:
        gates = functional.softmax(logits, dim=1)
        tokens, experts = gates.shape
        best, chosen = torch.topk(gates, k=self.k, dim=1)
        mask = torch.zeros_like(gates, dtype=torch.bool).scatter_(1, chosen, 1)
        counts = torch.sum(mask, dim=0).detach()
        l_aux = torch.mean(_balance(gates, mask)) * experts * experts / self.k
        capacity = self._place(counts, tokens)
        if self.drop_tokens:
            scores = torch.zeros_like(gates).scatter(1, chosen, best)
            within = torch.topk(scores, k=min(capacity, tokens), dim=0, sorted=False)[1]
            mask &= torch.zeros_like(gates, dtype=torch.bool).scatter_(0, within, True)
        locations = torch.cumsum(mask, dim=0) - 1
        masked = gates * mask
        whole = torch.clamp(
            torch.sum(masked, dim=-1, keepdim=True), min=torch.finfo(gates.dtype).eps
        )
        masked = masked / whole
        kept = mask.gather(1, chosen)
        indices = torch.where(kept, chosen, torch.full_like(chosen, -1))
        places = locations.gather(1, chosen) * kept
        return Routed(
            l_aux=l_aux, capacity=capacity, num_experts=experts,
            indices=_stacked(indices).to(torch.int32),
            locations=_stacked(places).to(torch.int32),
            gates=_stacked(masked.gather(1, chosen)), exp_counts=counts,
        )  # fmt: skip


def _stacked(routes: torch.Tensor) -> torch.Tensor:
    """One row per route."""
    return routes.t().contiguous()
