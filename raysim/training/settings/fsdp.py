"""Typed settings of torch's fully sharded data parallel, versions 1 and 2.

Version 2 is ``torch.distributed.fsdp.fully_shard``, version 1 ``FullyShardedDataParallel``. Names
and defaults are torch 2.13's: ``fsdp/_fully_shard/_fsdp_api.py``, ``fsdp/api.py``. Nothing here
knows about files; ``scenario/fsdp.py`` reads a user's into this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysim.errors import ScenarioError
from raysim.training.settings.deepspeed import Precision

ShardingStrategy = Literal[
    "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"
]
BackwardPrefetch = Literal["BACKWARD_PRE", "BACKWARD_POST"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSettings:
    """Arguments of ``fully_shard`` (``version`` 2) or ``FullyShardedDataParallel`` (1)."""

    version: Literal[1, 2] = 2
    sharding_strategy: ShardingStrategy = "FULL_SHARD"
    """Of version 1."""
    reshard_after_forward: bool | int = True
    """Of version 2: free after forward, keep, or keep a share of so many ranks' shards."""
    root_reshard_after_forward: bool = False
    """Of version 2: whether the root frees too; torch keeps it unless told otherwise."""
    replicas: int = 1
    """Hybrid sharding: groups of ranks that each hold all shards; 1: none."""
    param_dtype: Precision | None = None
    """All-gathers, forward and backward; None: the stored parameters' own."""
    reduce_dtype: Precision | None = None
    """Gradient reduction; None: the gradients' own."""
    layer_classes: tuple[str, ...] = ()
    """Classes wrapped one by one; empty: the model's blocks."""
    min_num_params: int | None = None
    """Size-based wrapping in place of classes: ``size_based_auto_wrap_policy``."""
    wrap: bool = True
    """False: the root is the one group."""
    keeps_last: bool = False
    """Of version 2: the last wrapped module stays after forward, as in torchtitan, since backward
    would gather it at once."""
    wrap_ends: bool = False
    """Of version 2: the embedding in a group of its own and final norm with head in another that
    stays after forward, as torchtitan and Accelerate do."""
    groups: tuple[tuple[tuple[str, ...], bool], ...] = ()
    """Modules of each group by name and whether they are freed after forward, outer ones first, in
    place of classes: of a pipeline's stages, which are wrapped one by one."""
    ignored: frozenset[str] = frozenset()
    """Full names of parameters that stay whole on every rank, and whose gradients nobody reduces
    (``ignored_params``, ``ignored_states``, ``ignored_modules``)."""
    shard_dims: tuple[tuple[str, int], ...] = ()
    """Of version 2: full names of parameters that are cut along another dimension than the first
    (``shard_placement_fn``), and which."""
    cpu_offload: bool = False
    pin_memory: bool = True
    """Of version 2's ``CPUOffloadPolicy``; version 1 always pins."""
    backward_prefetch: BackwardPrefetch | None = "BACKWARD_PRE"
    """Of version 1; version 2 always fetches before a group's backward."""
    forward_prefetch: bool | int = False
    """Issue the next group's all-gather, or those of so many next ones, before this one's forward.
    """
    backward_prefetched: int = 1
    """Of version 2: groups before it in forward order that a group's backward gathers ahead."""
    all_reduces_each: bool = True
    """Of version 2 with replicas: whether micro-batches before the last all-reduce what they have
    reduce-scattered, too (``set_requires_all_reduce``)."""
    reshard_after_backward: bool = True
    """Of version 2: whether backwards before the step's last give parameters back."""
    limit_all_gathers: bool = True
    """Of version 1: the host runs at most two all-gathers ahead."""
    use_orig_params: bool = False
    """Of version 1: parameters in the flat one are aligned to 16 bytes."""
    trained_apart: bool = True
    """Of version 1, beside frozen weights: trained modules are wrapped alone, as PEFT's policy and
    with it transformers' Trainer do. Without, a flat parameter of both has a gradient of both."""
    full_state_dict: bool = False
    """Checkpoints are collected on rank 0 (``FULL_STATE_DICT``), not written by every rank."""
    sequence_parallel: bool = False
    """Of tensor-parallel peers: DTensor's ``SequenceParallel`` between the divided modules."""
    async_tensor_parallel: bool = False
    """Their exchanges run beside the products (``_micro_pipeline_tp``, symmetric memory)."""
    sync_every_micro_batch: bool = False
    """Reduce gradients in every micro-batch instead of keeping them whole until the last."""

    @property
    def label(self) -> str:
        """What reports call it: ``FSDP2``, ``FSDP2, 4 replicas``, ``FSDP1 SHARD_GRAD_OP``."""
        name = f"FSDP{self.version}"
        if self.version == 1 and self.sharding_strategy != "FULL_SHARD":
            name += f" {self.sharding_strategy.lstrip('_')}"
        if self.version == 2 and self.reshard_after_forward is not True:
            name += f" reshard_after_forward {str(self.reshard_after_forward).lower()}"
        return name + (f", {self.replicas} replicas" if self.replicas > 1 else "")

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded at all."""
        return self.version == 2 or self.sharding_strategy != "NO_SHARD"

    @property
    def frees(self) -> bool:
        """Whether groups other than the root are sharded again after forward."""
        if self.version == 1:
            return self.sharding_strategy in {"FULL_SHARD", "HYBRID_SHARD"}
        after = self.reshard_after_forward
        return after if isinstance(after, bool) else after > 1

    def shard_ranks(self, ranks: int) -> int:
        """Ranks that share one copy of the parameters, of ``ranks`` data-parallel ones.

        Raises
        ------
        ScenarioError
            Replicas do not divide the ranks, or the ranks to reshard to not the shards.
        """
        if ranks % self.replicas:
            raise ScenarioError(f"{self.replicas} replicas do not divide {ranks} ranks")
        if not self.shards:
            return 1
        shards = ranks // self.replicas
        if self.version == 2 and shards % self.post_forward_ranks(shards):
            raise ScenarioError(
                f"reshard_after_forward {self.reshard_after_forward} is not a factor of {shards}, "
                "the ranks that share the parameters"
            )
        return shards

    def post_forward_ranks(self, shards: int) -> int:
        """Ranks whose shards make the whole between forward and backward; 1: it stays whole."""
        after = self.reshard_after_forward
        if self.version == 1 or isinstance(after, bool):
            return shards if self.frees else 1
        return after
