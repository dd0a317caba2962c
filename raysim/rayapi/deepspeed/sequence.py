"""``deepspeed.sequence.layer``: attention over whole sequences that ranks have a piece each of.

Real counterpart: ``deepspeed/sequence/layer.py`` of 0.19 (``DistributedAttention``,
``_SeqAllToAll``, ``single_all_to_all``). The same copies and exchanges run on shapes, and the
tracer hears them: heads are scattered and positions gathered before the attention that is given,
the other way round behind it.

Simplification: with ``sp_stream`` exchanges are not overlapped.

Not modelled: heads that do not divide evenly, ``rotary_pos_emb`` (refused).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from raysim.rayapi.unsupported import NotEmulatedError


class _Layout(NamedTuple):
    """``_generate_layout_params``: how an exchange cuts its input and puts together its output."""

    cut: list[int]
    before: tuple[int, ...] | None
    behind: tuple[int, ...] | None
    out: list[int]


def _layout(shape: torch.Size, ways: int, scatter_idx: int, batch_dim_idx: int) -> _Layout:
    a, b, heads, width = shape
    if scatter_idx < 2:
        if batch_dim_idx == 0:
            cut, before = [a, ways, b // ways, heads, width], (1, 0, 2, 3, 4)
            return _Layout(cut, before, (1, 2, 0, 3, 4), [a, b // ways, ways * heads, width])
        cut = [ways, a // ways, b, heads, width]
        return _Layout(cut, None, (1, 2, 0, 3, 4), [a // ways, b, ways * heads, width])
    assert heads % ways == 0, (
        f"Number of heads ({heads}) must be divisible by the sequence parallel size ({ways})!"
    )
    cut = [a, b, ways, heads // ways, width]
    if batch_dim_idx == 0:
        return _Layout(cut, (2, 0, 1, 3, 4), (1, 0, 2, 3, 4), [a, ways * b, heads // ways, width])
    return _Layout(cut, (2, 0, 1, 3, 4), None, [a * ways, b, heads // ways, width])


class SeqAllToAll(torch.autograd.Function):
    """``_SeqAllToAll``, whose gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any, group: Any, given: torch.Tensor, scatter_idx: int, gather_idx: int,
        batch_dim_idx: int,
    ) -> torch.Tensor:  # fmt: skip
        """Of a rank's piece."""
        ctx.said = group, gather_idx, scatter_idx, batch_dim_idx
        layout = _layout(given.shape, dist.get_world_size(group), scatter_idx, batch_dim_idx)
        sent = given.reshape(layout.cut).contiguous()
        if layout.before is not None:
            sent = sent.permute(layout.before).contiguous()
        found = torch.empty_like(sent)
        dist.all_to_all_single(found, sent, group=group)
        if layout.behind is not None:
            found = found.permute(layout.behind).contiguous()
        return found.reshape(layout.out).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Scattered along what was gathered."""
        group, scatter_idx, gather_idx, batch_dim_idx = ctx.said
        given = (group, *gradients, scatter_idx, gather_idx, batch_dim_idx)
        return None, SeqAllToAll.apply(*given), None, None, None  # type: ignore[no-untyped-call]


class DistributedAttention(nn.Module):
    """``deepspeed.sequence.layer.DistributedAttention``."""

    def __init__(
        self, local_attention: nn.Module, sequence_process_group: Any, scatter_idx: int = 2,
        gather_idx: int = 0, sp_stream: Any = None, num_kv_heads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.local_attn, self.spg = local_attention, sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx
        self.sp_stream, self.num_kv_heads = sp_stream, num_kv_heads

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch_dim_idx: int,
        rotary_pos_emb: Any = None, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Of this rank's positions; the attention sees all of them, and its share of heads."""
        if rotary_pos_emb is not None:
            raise NotEmulatedError("DistributedAttention(rotary_pos_emb=)", "rotation before it")
        ways = dist.get_world_size(self.spg)
        heads = self.num_kv_heads or key.shape[2]
        if heads % ways:
            raise NotEmulatedError(f"{heads} heads of keys over {ways} ranks", "a divisor of them")
        way = self.scatter_idx, self.gather_idx
        layers = [
            SeqAllToAll.apply(self.spg, x, *way, batch_dim_idx)  # type: ignore[no-untyped-call]
            for x in (query, key, value)
        ]
        context = self.local_attn(*layers, *args, **kwargs)
        back = self.gather_idx, self.scatter_idx, batch_dim_idx
        return SeqAllToAll.apply(self.spg, context, *back)  # type: ignore[no-untyped-call]


_SeqAllToAll = SeqAllToAll
