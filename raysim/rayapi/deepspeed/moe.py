"""``deepspeed.moe``: mixtures of experts, whose tokens travel to the ranks that hold them.

Real counterparts: ``deepspeed/moe/{layer,experts,sharded_moe}.py`` of 0.19; gates are in
``gating``, parameter groups in ``moe_groups``. The same operators run on shapes: every rank has its
own experts, and what it exchanges with others is heard by the tracer (``tracing.peers``).

Simplification: without ``drop_tokens`` routing is taken to be balanced (told).

Not modelled: Tutel (taken as not installed, as DeepSpeed then says), experts of pipelines and of an
``mpu`` (refused).
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from raysim.rayapi.deepspeed import groups
from raysim.rayapi.deepspeed.gating import TopKGate
from raysim.rayapi.deepspeed.moe_groups import (
    configure_moe_param_groups,
    has_moe_layers,
    is_moe_param,
    is_moe_param_group,
    split_params_into_different_moe_groups_for_optimizer,
    split_params_into_shared_and_expert_params,
)
from raysim.rayapi.deepspeed.utils import log_dist, logger
from raysim.rayapi.unsupported import NotEmulatedError

_FUNCTIONAL: Any = torch.ops._c10d_functional  # noqa: SLF001  (collectives that the tracer hears)
_POLICIES = (None, "None", "Jitter", "RSample")


class _AllToAll(torch.autograd.Function):
    """Tokens of each expert to the rank that holds it, or back."""

    @staticmethod
    def forward(ctx: Any, ranks: int, among: str, given: torch.Tensor) -> torch.Tensor:
        """As many rows from every rank of the group that is called so."""
        ctx.ranks, ctx.among = ranks, among
        given = given.contiguous()
        rows = [given.shape[0] // ranks] * ranks
        out: torch.Tensor = _FUNCTIONAL.all_to_all_single(given, rows, rows, among)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The way back."""
        back = _AllToAll.apply(ctx.ranks, ctx.among, *gradients)  # type: ignore[no-untyped-call]
        return None, None, back


class Experts(nn.Module):
    """``deepspeed.moe.experts.Experts``: this rank's own, each a copy of the one given."""

    def __init__(
        self, expert: nn.Module, num_local_experts: int = 1, expert_group_name: str | None = None
    ) -> None:
        super().__init__()
        copies = [copy.deepcopy(expert) for _ in range(num_local_experts)]
        self.deepspeed_experts = nn.ModuleList(copies)
        self.num_local_experts = num_local_experts
        for param in self.deepspeed_experts.parameters():
            param.allreduce = False  # type: ignore[attr-defined]
            param.group_name = expert_group_name  # type: ignore[attr-defined]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Each of its own rows."""
        made = []
        chunks = inputs.chunk(self.num_local_experts, dim=1)
        for chunk, expert in zip(chunks, self.deepspeed_experts, strict=False):
            out = expert(chunk)
            made.append(out[0] if isinstance(out, tuple) else out)  # a bias is let go
        return torch.cat(made, dim=1)


class MOELayer(nn.Module):
    """``deepspeed.moe.sharded_moe.MOELayer``: gate, dispatch, experts, combine."""

    def __init__(
        self, gate: TopKGate, experts: Experts, ep_group_name: str, ep_size: int,
        num_local_experts: int, use_tutel: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.gate, self.experts = gate, experts
        self.ep_group: Any = None
        self.ep_size, self.ep_group_name = ep_size, ep_group_name
        self.num_local_experts = num_local_experts
        self.time_falltoall = self.time_salltoall = self.time_moe = 0.0
        self.wall_clock_breakdown = self.use_tutel = False
        self.l_aux: Any = None
        self.exp_counts: Any = None
        if use_tutel:
            logger.warning(
                "Tutel optimization requested but not installed. Proceeding without Tutel."
            )

    def _set_ep_group(self, ep_group: Any) -> None:
        self.ep_group = ep_group
        self.gate._set_ep_group(ep_group)  # noqa: SLF001  (DeepSpeed's own)

    def forward(self, *inputs: Any, **_more: Any) -> torch.Tensor:
        """Of tokens, and which of them are used."""
        hidden, used = inputs[0], inputs[1] if len(inputs) > 1 else None
        width = hidden.shape[-1]
        tokens = hidden.reshape(-1, width)
        routed = self.gate(tokens, used)
        self.l_aux, self.exp_counts = routed.l_aux, routed.exp_counts
        count, capacity = routed.num_experts, routed.capacity
        slots = _route_slots(routed.indices, routed.locations, count, capacity)
        sent = self._exchanged(_sparse_encode(tokens, slots, count, capacity))
        sent = sent.reshape(self.ep_size, self.num_local_experts, -1, width)
        back = self.experts(sent).reshape(count, -1, width)
        back = self._exchanged(back)
        out = _sparse_decode(back.view(count * capacity, width), slots, routed.gates, len(tokens))
        return out.reshape(hidden.shape)

    def _exchanged(self, rows: torch.Tensor) -> torch.Tensor:
        if self.ep_size == 1:
            return rows.contiguous()
        out: torch.Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            self.ep_size, self.gate.among, rows
        )
        return out


def _route_slots(
    indices: torch.Tensor, locations: torch.Tensor, experts: int, capacity: int
) -> torch.Tensor:
    """Where each route's token goes; evicted ones to a place of their own."""
    flat = indices.long() * capacity + locations.long()
    scratch = torch.full_like(flat, experts * capacity)
    return torch.where(indices >= 0, flat, scratch)


def _sparse_encode(
    tokens: torch.Tensor, slots: torch.Tensor, experts: int, capacity: int
) -> torch.Tensor:
    """Tokens by expert and place: one gather."""
    count, width = tokens.shape
    source = torch.full(
        (experts * capacity + 1,), count, dtype=torch.long, device=slots.device
    )  # fmt: skip
    numbers = torch.arange(count, device=slots.device).expand_as(slots)
    source.scatter_(0, slots.reshape(-1), numbers.reshape(-1))
    padded = torch.cat([tokens, tokens.new_zeros(1, width)])
    return padded.index_select(0, source[:-1]).view(experts, capacity, width)


def _sparse_decode(
    rows: torch.Tensor, slots: torch.Tensor, gates: torch.Tensor, count: int
) -> torch.Tensor:
    """Each token's results, weighted in fp32."""
    width = rows.size(-1)
    padded = torch.cat([rows, rows.new_zeros(1, width)])
    routed = padded.index_select(0, slots.reshape(-1)).view(slots.size(0), count, width)
    combined = (routed * gates.unsqueeze(-1)).sum(0)
    return combined.to(rows.dtype)


class MoE(nn.Module):
    """``deepspeed.moe.layer.MoE``."""

    def __init__(
        self, hidden_size: int, expert: nn.Module, num_experts: int = 1, ep_size: int = 1,
        k: int = 1, capacity_factor: float = 1.0, eval_capacity_factor: float = 1.0,
        min_capacity: int = 4, use_residual: bool = False, noisy_gate_policy: str | None = None,
        drop_tokens: bool = True, use_rts: bool = True, use_tutel: bool = False,
        enable_expert_tensor_parallelism: bool = False, top2_2nd_expert_sampling: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.use_residual = use_residual
        self.enable_expert_tensor_parallelism = enable_expert_tensor_parallelism
        assert num_experts % ep_size == 0, (
            f"Number of experts ({num_experts}) should be divisible by expert parallel size "
            f"({ep_size})"
        )
        self.ep_size, self.num_experts = ep_size, num_experts
        self.expert_group_name = f"ep_size_{ep_size}"
        self.num_local_experts = num_experts // ep_size
        log_dist(
            f"Creating MoE layer with num_experts: {num_experts} | num_local_experts: "
            f"{self.num_local_experts} | expert_parallel_size: {ep_size}", [0],
        )  # fmt: skip
        assert noisy_gate_policy in _POLICIES, f"Unsupported noisy_gate_policy: {noisy_gate_policy}"
        self.deepspeed_moe = MOELayer(
            TopKGate(
                hidden_size, num_experts, k, capacity_factor, eval_capacity_factor, min_capacity,
                noisy_gate_policy, drop_tokens, use_rts, None, top2_2nd_expert_sampling,
            ),
            Experts(expert, self.num_local_experts, self.expert_group_name),
            self.expert_group_name, ep_size, self.num_local_experts, use_tutel=use_tutel,
        )  # fmt: skip
        if use_residual:
            self.mlp = expert
            self.coefficient = nn.Linear(hidden_size, 2)

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
        """Its groups, made by the first layer of an ``ep_size``; the engine calls it."""
        del use_data_before_expert_parallel_
        name = self.expert_group_name
        if name not in groups._get_expert_parallel_group_dict():  # noqa: SLF001
            said = f"No existing process group found, creating a new group named: {name}\n"
            sys.stdout.write(said)  # as DeepSpeed prints it
            groups._create_expert_and_data_parallel(self.ep_size)  # noqa: SLF001
        self.deepspeed_moe._set_ep_group(groups._get_expert_parallel_group(name))  # noqa: SLF001

    def forward(self, hidden_states: torch.Tensor, used_token: Any = None) -> Any:
        """Output, the gate's loss, and tokens of each expert."""
        output = self.deepspeed_moe(hidden_states, used_token)
        if self.use_residual:
            own = self.mlp(hidden_states)
            own = own[0] if isinstance(own, tuple) else own  # a bias is let go
            shares = functional.softmax(self.coefficient(hidden_states), dim=-1)
            output = output * shares[..., 0:1] + own * shares[..., 1:]
        return output, self.deepspeed_moe.l_aux, self.deepspeed_moe.exp_counts


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def refused(*_args: Any, **_kwargs: Any) -> Any:
        raise NotEmulatedError(f"deepspeed.moe.{name}", "deepspeed.moe.layer.MoE")

    return refused


__all__ = [
    "Experts",
    "MOELayer",
    "MoE",
    "TopKGate",
    "configure_moe_param_groups",
    "has_moe_layers",
    "is_moe_param",
    "is_moe_param_group",
    "split_params_into_different_moe_groups_for_optimizer",
    "split_params_into_shared_and_expert_params",
]
