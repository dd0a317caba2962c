"""What an engine's GPUs hold: weights, working memory, and what is left for keys and values.

Real counterpart: vLLM's ``determine_available_memory`` and ``get_kv_cache_configs``. It runs the
largest batch once, and gives what is left of ``gpu_memory_utilization`` to blocks of the cache.

Where some layers slide and others do not, both kinds share one pool and a sequence's sliding layers
hold no more than their window (vLLM's hybrid cache manager). Where some layers keep a state instead
of keys, a block is made long enough that one layer's keys in it are as large as one layer's state
(``HybridAttentionMambaModelConfig``), and a sequence holds as many blocks more as it takes to give
each such layer one.

Not modelled: memory of other processes; states kept with a shared prefix, a block's size of them
per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from raysim.hardware.specs import GpuSpec
from raysim.serving.decoder import BF16_BYTES, Block, Decoder
from raysim.serving.four_bit import MARLIN, padding
from raysim.serving.lora import adapter_bytes
from raysim.serving.settings import BLOCK_TOKENS, EngineSettings
from raysim.units import format_bytes

LIBRARIES_BYTES = 0.7 * 2**30
"""Of the share, what CUDA's libraries hold: what weights, activations and the cache leave over in
vLLM 0.19's log on one A100 (gpt-oss-20b: 79.25 GiB * 0.65 - 13.72 - 36.56; myoceane.fr, April 2026;
the same log of a Gemma 4 of 26 B agrees to 0.1 GiB). Captured graphs lie outside the share."""
LOGIT_BYTES = BF16_BYTES + 4.0 + 4.0
"""Per logit while sampling: as computed, in fp32, and as probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Memory of one of an engine's GPUs, in bytes."""

    usable_bytes: float
    """The share of the GPU that vLLM may fill."""
    weights_bytes: float
    working_bytes: float
    """Activations of the largest batch, and room for adapters."""
    kv_bytes_per_token: float
    blocks: int
    """Of the cache; 0 or less: the model does not fit."""
    block_size: int
    window_blocks: int = 0
    """Of a sequence, for layers that slide."""
    state_blocks: int = 0
    """Of a sequence, for layers that keep a state."""

    @property
    def tokens(self) -> int:
        """Of one sequence that the cache holds."""
        return max(0, self.blocks - self.window_blocks - self.state_blocks) * self.block_size

    def fits(self, length: int) -> bool:
        """Whether one sequence of this length can ever run."""
        return self.tokens >= length

    def refusal(self, length: int) -> str:
        """Why an engine for sequences of this length cannot start; empty if it can."""
        if self.blocks <= 0:
            short = -self.blocks * self.block_size * self.kv_bytes_per_token
            return (
                f"weights ({format_bytes(self.weights_bytes)} per GPU) and working memory "
                f"({format_bytes(self.working_bytes)}) leave no room for keys and values in "
                f"{format_bytes(self.usable_bytes)}; {format_bytes(short)} are missing: use more "
                "tensor parallel ranks, narrower weights or GPUs with more memory"
            )
        if not self.fits(length):
            return (
                f"the cache holds {self.tokens:,} tokens, a sequence may have {length:,}: lower "
                "max_model_len, or use more tensor parallel ranks"
            )
        return ""


def capacity_of(
    decoder: Decoder, gpu: GpuSpec, settings: EngineSettings, marlin: tuple[str, ...] = MARLIN
) -> Capacity:
    """Memory of one of the engine's GPUs.

    Parameters
    ----------
    settings
        With the defaults that depend on the GPU filled in (``EngineSettings.for_gpu``).
    marlin
        Architectures whose four-bit experts are laid out for Marlin.
    """
    tp = settings.tensor_parallel_size
    batch, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    assert batch is not None, "settings without the GPU's defaults"
    assert seqs is not None, "settings without the GPU's defaults"
    # the residual, a branch's input and output; beside them its widest layer, or experts' copies
    widest = max(
        max(
            3 * b.dense_width / tp,
            b.experts_per_token * (decoder.hidden + 3 * b.expert_width / tp),
        )
        for b in decoder.blocks
    )
    activations = batch * (3 * decoder.hidden + widest) * BF16_BYTES
    logits = min(seqs, batch) * decoder.vocabulary * LOGIT_BYTES
    working = max(activations, logits) + LIBRARIES_BYTES  # the former are freed before the latter
    if settings.enable_lora:
        adapter = adapter_bytes(decoder, settings.max_lora_rank, tp)
        working += settings.max_loras * adapter * _layers_share(decoder, settings)
    whole, sliding, window_blocks = _kept(decoder, settings)
    per_token = (whole or sliding) * settings.kv_bytes * _layers_share(decoder, settings)
    block_size, state_blocks = _paged(decoder, settings)
    usable = gpu.memory_bytes * settings.gpu_memory_utilization
    weights = _weights(decoder, settings, gpu, marlin)
    left = usable - weights - working
    return Capacity(
        usable_bytes=usable,
        weights_bytes=weights,
        working_bytes=working,
        kv_bytes_per_token=per_token,
        blocks=int(left // (per_token * block_size)),
        block_size=block_size,
        window_blocks=window_blocks,
        state_blocks=state_blocks,
    )


def _layers_share(decoder: Decoder, settings: EngineSettings) -> float:
    """Of all layers, those of the longest stage."""
    return ceil(decoder.layers / settings.pipeline_parallel_size) / decoder.layers


def _weights(
    decoder: Decoder, settings: EngineSettings, gpu: GpuSpec, marlin: tuple[str, ...]
) -> float:
    """Of a rank of the fullest stage: its layers, and the embeddings or the head."""
    share, routed = _layers_share(decoder, settings), decoder.routed_bytes
    held = decoder.total_bytes - routed
    if settings.pipeline_parallel_size > 1:
        ends = decoder.hidden * decoder.vocabulary * BF16_BYTES
        held = (held - ends * (1 if decoder.tied else 2)) * share + ends
    cut = 1 if settings.enable_expert_parallel else settings.expert_ranks
    routed *= max(padding(decoder, b, gpu, cut, marlin) for b in decoder.blocks)
    return held / settings.tensor_parallel_size + routed * share / settings.expert_ranks


def _elements(b: Block, settings: EngineSettings) -> float:
    """Per token of one layer on one rank; latents are whole on every rank."""
    return b.latent or 2 * max(1.0, b.kv_heads / settings.tensor_parallel_size) * b.head_dim


def _paged(decoder: Decoder, settings: EngineSettings) -> tuple[int, int]:
    """Tokens of a block, and a sequence's blocks for layers that keep a state."""
    states = [b for b in decoder.blocks if b.scan is not None]
    if not states:
        return settings.block_size, 0
    largest = max(decoder.layer_state_bytes(b) for b in states) / settings.tensor_parallel_size
    keyed = [b for b in decoder.blocks if b.heads]
    per_token = max(_elements(b, settings) for b in keyed) * settings.kv_bytes
    least = BLOCK_TOKENS * ceil(largest / (BLOCK_TOKENS * per_token))
    layers, keeping = sum(b.count for b in keyed), sum(b.count for b in states)
    return max(settings.block_size, least), ceil(keeping / layers)


def _kept(decoder: Decoder, settings: EngineSettings) -> tuple[float, float, int]:
    """Elements per token of layers that keep all and of those that slide; the latter's blocks."""
    whole = sliding = 0.0
    window = 0
    for b in decoder.blocks:
        if not b.heads:
            continue
        elements = b.count * _elements(b, settings)
        if b.window is None:
            whole += elements
        else:
            sliding += elements
            window = max(window, b.window)
    if not whole:
        return 0.0, sliding, 0
    blocks = ceil(window / settings.block_size) + 1 if window else 0
    return whole, sliding, ceil(blocks * sliding / whole)
