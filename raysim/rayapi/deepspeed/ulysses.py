"""``deepspeed.runtime.sequence_parallel.ulysses_sp``: Ulysses for transformers' models (ALST).

Real counterpart: the module of that name (0.19): ``UlyssesSPAttentionHF`` takes the place of the
attention that a model asks for, ``UlyssesSPDataLoaderAdapter`` gives each rank its piece of every
sample. The same copies and exchanges run on shapes, and the tracer hears them.

Not modelled: ``flex_attention``, tiled MLPs and losses (refused).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from raysim.rayapi.deepspeed import parallel_state
from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError

_EAGER = ("eager", "paged|eager")


class _Exchanged(torch.autograd.Function):
    """``_dim_zero_all_to_all``, whose gradients go the same way."""

    @staticmethod
    def forward(ctx: Any, group: Any, given: torch.Tensor) -> torch.Tensor:
        """A part to each rank."""
        ctx.group = group
        given = given.contiguous()
        found = torch.empty_like(given)
        dist.all_to_all_single(found, given, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The way back."""
        return None, _Exchanged.apply(ctx.group, *gradients)  # type: ignore[no-untyped-call]


class UlyssesSPAttentionHF(nn.Module):
    """``UlyssesSPAttentionHF``: of local positions and all heads, around attention of others."""

    def __init__(
        self, attn: Any, batch_size: int, attn_head_count: int, attn_head_size: int,
        kv_head_count: int, num_hidden_layers: int, process_group: Any,
        seq_length_is_variable: bool = False, local_seq_length: int | None = None,
        global_seq_length: int | None = None, disable_in_eval: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        del num_hidden_layers
        self.attn, self.process_group = attn, process_group
        self.world_size = ways = dist.get_world_size(process_group)
        self.sp_rank = dist.get_rank(process_group)
        self.batch_size, self.seq_length_is_variable = batch_size, seq_length_is_variable
        self.local_seq_length, self.global_seq_length = local_seq_length, global_seq_length
        self.disable_in_eval = disable_in_eval
        self.heads, self.kv_heads, self.width = attn_head_count, kv_head_count, attn_head_size
        self.kv_replication_factor = ways // kv_head_count
        if attn_head_count % ways:
            raise ValueError(
                f"Attention head count {attn_head_count} is not divisible by SP size {ways}"
            )
        if kv_head_count % ways and ways % kv_head_count:
            raise ValueError(
                f"KV attention head count {kv_head_count} is not divisible by SP size {ways} or "
                "vice versa"
            )

    def _gathered(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """All positions of a rank's heads, of transformers' (batch, heads, positions, width)."""
        x, ways = x.permute(2, 0, 1, 3), self.world_size
        if heads == self.kv_heads != self.heads and self.kv_replication_factor > 1:
            x, heads = x.repeat_interleave(self.kv_replication_factor, dim=2), ways
        length, batch = x.shape[:2]
        cut = x.reshape(length, batch, ways, heads // ways, self.width)
        sent = cut.permute(2, 0, 1, 3, 4).contiguous()
        found = _Exchanged.apply(self.process_group, sent)  # type: ignore[no-untyped-call]
        whole: torch.Tensor = found.reshape(ways * length, batch, heads // ways, self.width)
        return whole.permute(1, 2, 0, 3).contiguous()

    def _parted(self, context: torch.Tensor) -> torch.Tensor:
        """A rank's positions of all heads, of (batch, positions, its heads, width)."""
        batch, length, ways = context.shape[0], context.shape[1], self.world_size
        x = context.permute(1, 0, 2, 3).reshape(length, batch, -1)
        x = x.reshape(ways, length // ways, batch, x.shape[-1]).contiguous()
        found = _Exchanged.apply(self.process_group, x)  # type: ignore[no-untyped-call]
        out: torch.Tensor = found.permute(1, 2, 0, 3)
        out = out.reshape(length // ways, batch, -1).contiguous()
        return out.permute(1, 0, 2).reshape(batch, length // ways, -1)

    def forward(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: Any, *args: Any, **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:  # fmt: skip
        """As transformers calls its attention functions."""
        if not module.training and self.disable_in_eval:
            found: tuple[torch.Tensor, Any] = self.attn(
                module, query, key, value, attention_mask, *args, **kwargs
            )
            return found
        assert "position_ids" in kwargs, (
            "Ulysses SP requires position_ids in every forward() call so that after all_gather "
            "causal masking works correctly."
        )
        given = kwargs["position_ids"]
        every = [torch.empty_like(given) for _ in range(self.world_size)]
        dist.all_gather(every, given, group=self.process_group)
        kwargs["position_ids"] = torch.cat(every, dim=1)
        asked = self.batch_size, query.shape[2] if self.seq_length_is_variable else (
            self.local_seq_length
        )  # fmt: skip
        assert (query.shape[0], query.shape[2]) == asked, (
            f"[{dist.get_rank()}]: query input tensor does not match the required shape: batch and "
            f"local sequence are {query.shape[0]} and {query.shape[2]}, not {asked}"
        )
        whole = (
            self._gathered(query, self.heads), self._gathered(key, self.kv_heads),
            self._gathered(value, self.kv_heads),
        )  # fmt: skip
        if self.kv_replication_factor > 1:
            grouped: Any = module
            grouped.num_key_value_groups = whole[0].size(-3) // whole[1].size(-3)
        context, weights = self.attn(module, *whole, None, *args, **kwargs)
        return self._parted(context), weights

    @classmethod
    def register_with_transformers(
        cls, model_name_or_path: Any, core_attn_implementation: str, sequence_parallel_size: int,
        micro_batch_size: int, seq_length: int | None = None, seq_length_is_variable: bool = True,
        disable_in_eval: bool = False, max_length: int | None = None,
    ) -> Any:  # fmt: skip
        """Around the attention of that name; returns the ``mpu`` of ``deepspeed.initialize``.

        Raises
        ------
        ValueError
            No length, another attention than the model's, or one that keeps a mask.
        NotEmulatedError
            ``flex_attention``.
        """
        from transformers import AutoConfig
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        seq_length = seq_length or max_length
        if not seq_length_is_variable and seq_length is None:
            raise ValueError(
                "Either `seq_length_is_variable` needs to be `True` or `seq_length` needs to be "
                "set to an integer value of the fixed batch size length."
            )
        parallel_state.initialize_sequence_parallel(sequence_parallel_size)
        config = getattr(model_name_or_path, "config", None)
        own = getattr(config, "_attn_implementation", None)
        if own not in {None, core_attn_implementation}:
            raise ValueError(
                f"core_attn_implementation='{core_attn_implementation}' does not match model "
                f"config attn_implementation='{own}'. Set both to the same value so "
                "sequence-parallel wrapper can intercept the active attention path."
            )
        if core_attn_implementation in _EAGER:
            raise ValueError(
                f"{core_attn_implementation} attn_implementation isn't currently supported by "
                "Ulysses sequence parallelism because it requires a 4D attention_mask (O(n^2) "
                "memory)."
            )
        if core_attn_implementation == "flex_attention":
            raise NotEmulatedError("UlyssesSPAttentionHF around flex_attention", "sdpa")
        arch = (config or AutoConfig.from_pretrained(model_name_or_path)).get_text_config()
        fixed = None if seq_length_is_variable else seq_length
        heads = arch.num_attention_heads
        around = _instead_of(core_attn_implementation, ALL_ATTENTION_FUNCTIONS)
        around.of_worker()[core_attn_implementation] = cls(
            attn=around.real, batch_size=micro_batch_size, attn_head_count=heads,
            attn_head_size=getattr(arch, "head_dim", None) or arch.hidden_size // heads,
            kv_head_count=arch.num_key_value_heads, num_hidden_layers=arch.num_hidden_layers,
            process_group=parallel_state.get_sequence_parallel_group(),
            seq_length_is_variable=seq_length_is_variable,
            local_seq_length=fixed and fixed // sequence_parallel_size, global_seq_length=fixed,
            disable_in_eval=disable_in_eval,
        )  # fmt: skip
        return parallel_state


class _Around:
    """Under an attention's name: every worker's own, of which this process runs several."""

    def __init__(self, name: str, real: Any) -> None:
        self.name, self.real = name, real

    def of_worker(self) -> dict[str, UlyssesSPAttentionHF]:
        """By name."""
        worker = worker_here()
        known: dict[str, Any] = {} if worker is None else worker.globals.setdefault(_Around, {})
        return known

    def __call__(self, module: Any, query: Any, key: Any, value: Any, *args: Any, **kw: Any) -> Any:
        """Of who has none, the real one."""
        return self.of_worker().get(self.name, self.real)(module, query, key, value, *args, **kw)


def _instead_of(name: str, functions: Any) -> _Around:
    found = functions[name]
    if not isinstance(found, _Around):
        found = functions[name] = _Around(name, found)
    return found


class UlyssesSPDataLoaderAdapter:
    """``UlyssesSPDataLoaderAdapter``: every rank's samples one by one, a piece of each."""

    def __init__(
        self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any
    ) -> None:
        self.dl, self.sp_rank, self.sp_group = dl, sp_rank, sp_group
        self.sp_world_size, self.device = sp_world_size, device
        self.iter: Any = iter(dl)
        self.micro_batches: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self.dl) * self.sp_world_size

    def __iter__(self) -> UlyssesSPDataLoaderAdapter:
        return self

    def __next__(self) -> Any:
        if not self.micro_batches:
            self.refill()
        return self.micro_batches.popleft()

    def refill(self) -> None:
        """One batch of each of the ranks.

        Raises
        ------
        StopIteration
            At the end of an epoch.
        ValueError
            Without positions, or of a length that the ranks cannot share.
        """
        try:
            batch = next(self.iter)
        except StopIteration:
            self.iter = iter(self.dl)
            raise
        if "position_ids" not in batch:
            raise ValueError(
                "Ulysses SP requires `position_ids` in every dataloader batch so that each token "
                "retains its correct global position after sequence sharding."
            )
        ways = self.sp_world_size
        own = torch.full((1,), batch["input_ids"].shape[1], dtype=torch.int64, device=self.device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(ways)]
        dist.all_gather(lengths, own, group=self.sp_group)
        counts = [int(x[0].item()) for x in lengths]
        every: list[dict[str, Any]] = [{} for _ in range(ways)]
        for name, value in batch.items():
            found: list[Any] = [None] * ways
            if torch.is_tensor(value):
                here = value.to(self.device)
                found = [here.new_zeros((here.shape[0], n)) for n in counts]
                dist.all_gather(found, here, group=self.sp_group)
            else:
                dist.all_gather_object(found, value, group=self.sp_group)
            for piece, each in zip(every, found, strict=True):
                piece[name] = each
        self.micro_batches.extend(self._piece(each) for each in every)

    def _piece(self, batch: dict[str, Any]) -> dict[str, Any]:
        length = batch["input_ids"].shape[1]
        if length % self.sp_world_size:
            raise ValueError(
                f"batch's seqlen={length} isn't divisible by sp-size={self.sp_world_size}"
            )
        chunk = length // self.sp_world_size
        labels = functional.pad(batch.pop("labels"), (0, 1), value=-100)
        batch["shift_labels"] = labels[..., 1:].contiguous()
        own = slice(chunk * self.sp_rank, chunk * (self.sp_rank + 1))
        return {k: v[:, own].cpu() if torch.is_tensor(v) else v for k, v in batch.items()}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"ulysses_sp.{name}", "UlyssesSPAttentionHF and its data loader")
