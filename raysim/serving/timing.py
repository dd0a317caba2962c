"""How long one iteration of an engine takes: pure functions of what its batch holds.

Real counterpart: vLLM's V1 model runner under CUDA graphs and torch.compile. An iteration reads
the weights its tokens touch, computes its products, reads the keys and values of every sequence,
exchanges activations between tensor-parallel ranks and samples. Products take ``perf.gemm``'s
time; routed experts read those that some token chose, ``E (1 - (1 - 1/E) ** (k T))`` of them in
the mean when T tokens choose k each, evenly. Weights of four bits are widened in registers, so
their products take 16-bit ones' arithmetic at ``MXFP4_SHARE`` of its rate.

Not modelled: uneven routing, engines with attention apart that wait for another with more tokens,
overlap of one iteration's host work with the next beyond what ``ITERATION_S`` holds, eager engines'
launches beyond ``EAGER_KERNEL_S``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raysim.models.table import Attention
from raysim.perf.attention import fused_seconds
from raysim.perf.collectives import GroupShape, collective
from raysim.perf.compute import ComputeModel
from raysim.perf.scan import waiting_s
from raysim.serving.decoder import BF16_BYTES, Block, Decoder
from raysim.serving.four_bit import MARLIN, MARLIN_2025, marlin_rows, padding

if TYPE_CHECKING:
    import numpy.typing as npt

    from raysim.hardware.specs import GpuSpec, NodeSpec

FLASH_ATTENTION_2 = ("ampere", "ada")
"""Architectures on which vLLM's attention is FlashAttention 2 (3 on Hopper, which packs query heads
that share keys also here). It packs them, and splits keys, only where no sequence has more than one
token (``mha_varlen_fwd``, ``seqlenq_ngroups_swapped``): beside a prompt each query head of a
sequence that decodes reads its keys and values by itself. Models with attention sinks take Triton's
kernel, which packs."""
MARLIN_SHARE = 0.491
"""Of a 16-bit product's rate, by Marlin over whole blocks of rows; like ``TRITON_SHARE`` of gpt-oss
on A100 (``validation/fits/vllm_bench.py``)."""
TRITON_SHARE = 0.115
"""Of the 16-bit peak, over prompts, where attention with sinks is Triton's."""
KERNEL_S = 3.0e-6
"""A kernel too small to fill the GPU, in a captured graph, with the gap to the next."""
EAGER_KERNEL_S = 12e-6
"""The same dispatched by the host; assumed (``perf.host``: an operator's dispatch)."""
ITERATION_S = 0.1e-3
"""Host work of an iteration that the GPU waits for: scheduling, inputs, sampling, outputs."""
SEQUENCE_S = 32e-6
"""The same per sequence that gets a token."""
MXFP4_SHARE = 0.307
"""Of a 16-bit product's rate, where weights of four bits are widened first."""
GATHER_SHARE = 0.8
"""Of the memory's bandwidth, for reading experts' weights and pages of keys and values; assumed
that of streaming kernels (``perf.gemm``: 0.83 on H100)."""
DENSE_KERNELS = 6
"""Small kernels of a block beside its products: two norms, rotary embedding, cache write, the
merge of attention's splits, gated activation."""
EXPERT_KERNELS = 6
"""More of a mixture: router's softmax and top-k, alignment, permutation, scales, weighted sum."""
PRODUCTS = 4
"""Of a block of attention and a feed-forward: qkv, out, gate and up, down."""
SMALL_REDUCE_S = 6e-6
"""Of a one-shot all-reduce through peers' memory (vLLM's custom kernel), before bytes; assumed."""
SMALL_REDUCE_BYTES = 8 * 2**20
"""Up to which vLLM uses that kernel (``custom_all_reduce.py``, ``max_size``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What was fitted, on H100 (``validation/fits/serving.py``); by default for vLLM of 2026."""

    kernel_s: float = KERNEL_S
    iteration_s: float = ITERATION_S
    sequence_s: float = SEQUENCE_S
    mxfp4_share: float = MXFP4_SHARE
    marlin: tuple[str, ...] = MARLIN
    """Architectures whose four-bit experts are laid out for Marlin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """Seconds per token of context that a sequence reads as it decodes."""

    full_s: float
    """Of layers that read all keys."""
    windows: tuple[tuple[float, int], ...]
    """Of those that slide, with their window."""


VLLM_2026 = Constants()
VLLM_2025 = Constants(iteration_s=2.14e-3, sequence_s=30e-6, mxfp4_share=0.180, marlin=MARLIN_2025)
"""Before asynchronous scheduling: the GPU waits for the host between iterations."""


def group_of(node: NodeSpec, ranks: int) -> GroupShape | None:
    """The communicator of tensor-parallel ranks on one node; None of a single one."""
    return None if ranks == 1 else GroupShape.on(node, ranks=ranks)


@dataclass(eq=False)
class IterationTimes:
    """Times of one engine's iterations on its GPUs.

    Parameters
    ----------
    decoder, gpu
        What is computed, and on what.
    group
        The tensor-parallel ranks; None: one GPU.
    experts, whole_experts
        Data-parallel attention: each of these ranks' engines has as many tokens in a layer.
    kv_bytes
        Per element of a kept key or value.
    """

    decoder: Decoder
    gpu: GpuSpec
    group: GroupShape | None = None
    kv_bytes: int = 2
    eager: bool = False
    constants: Constants = VLLM_2026
    experts: GroupShape | None = None
    """The ranks that share experts, if they are more than tensor-parallel ones."""
    whole_experts: bool = False
    """Each rank has some, not a slice of each."""

    def __post_init__(self) -> None:
        self.tp = 1 if self.group is None else self.group.ranks
        self.expert_ranks = self.tp if self.experts is None else self.experts.ranks
        self.compute = ComputeModel(self.gpu, fused_kernel="best", cuda_graphs=True)
        self._tokens: dict[int, float] = {}
        self._heads: dict[int, float] = {}
        self.gather_bytes_per_s = self.gpu.memory_bytes_per_s * GATHER_SHARE
        self._reads = self._reads_by_head = self._reads_of(self.kept_elements)
        if self.gpu.architecture in FLASH_ATTENTION_2 and not self.decoder.sinks:
            self._reads_by_head = self._reads_of(self._read_by_head)
        states = sum(b.count * self.decoder.layer_state_bytes(b) for b in self.decoder.blocks)
        self._states_s = 2.0 * states / self.tp / self.gather_bytes_per_s
        """Per sequence that decodes: its recurrences' states are read and written."""

    def kept_elements(self, block: Block) -> float:
        """Elements per token that one rank keeps of one layer; latents are whole on every rank."""
        if block.latent:
            return float(block.latent)
        return 2.0 * max(1.0, block.kv_heads / self.tp) * block.head_dim

    def _read_by_head(self, block: Block) -> float:
        """Elements per token where each query head reads its keys and values by itself."""
        if block.latent or not block.heads:
            return self.kept_elements(block)
        return 2.0 * max(1.0, block.heads / self.tp) * block.head_dim

    def _reads_of(self, elements: Callable[[Block], float]) -> _Reads:
        per_key = [
            (b.count * elements(b) * self.kv_bytes / self.gather_bytes_per_s, b.window)
            for b in self.decoder.blocks
        ]
        return _Reads(
            full_s=sum(s for s, window in per_key if window is None),
            windows=tuple((s, window) for s, window in per_key if window is not None),
        )

    # ---- what the number of tokens decides -------------------------------------------------------

    def tokens_s(self, tokens: int) -> float:
        """Products, small kernels and exchanges of an iteration over ``tokens`` tokens."""
        known = self._tokens.get(tokens)
        if known is None:
            known = self._tokens[tokens] = self._tokens_s(tokens)
        return known

    def _tokens_s(self, tokens: int) -> float:
        seconds = 0.0
        for block in self.decoder.blocks:
            one = self._products_s(block, tokens) + self._small_s(block, tokens)
            size_bytes = tokens * self.decoder.hidden * BF16_BYTES
            apart = bool(block.experts) and self.experts is not None
            one += (block.branches - apart) * self.reduce_s(size_bytes)
            one += self._exchange_s(size_bytes) if apart else 0.0
            seconds += block.count * one
        return seconds

    def _exchange_s(self, size_bytes: float) -> float:
        """Tokens of all engines to all experts' ranks, and their sums back.

        vLLM's default, ``allgather_reducescatter``: every rank gets every token.
        """
        assert self.experts is not None, "experts that are shared"
        whole = size_bytes * self.expert_ranks / self.tp
        there = collective("all_gather", whole, self.experts).seconds
        return there + collective("reduce_scatter", whole, self.experts).seconds

    def sampled_s(self, sequences: int) -> float:
        """Logits, sampling and the host's share for sequences that get a token."""
        known = self._heads.get(sequences)
        if known is None:
            c, d = self.constants, self.decoder
            head = self.compute.gemm_s(
                sequences, math.ceil(d.vocabulary / self.tp), d.hidden, "bf16"
            )
            known = self._heads[sequences] = (
                c.iteration_s + c.sequence_s * sequences + (head if sequences else 0.0)
            )
        return known

    def _products_s(self, b: Block, tokens: int) -> float:
        d, tp = self.decoder, self.tp
        into, out = b.input_parameters / d.hidden, b.output_parameters / d.hidden
        seconds = 0.0
        if b.output_parameters:
            seconds += self._dense_s(tokens, math.ceil(into / tp), d.hidden)
            seconds += self._dense_s(tokens, d.hidden, math.ceil(out / tp))
        if b.dense_width:
            width = math.ceil(b.dense_width / tp)
            columns = b.dense_columns // b.dense_width * width
            seconds += self._dense_s(tokens, columns, d.hidden)
            seconds += self._dense_s(tokens, d.hidden, width)
        if b.narrowed:
            seconds += self._dense_s(tokens, b.narrowed, d.hidden)
            seconds += self._dense_s(tokens, d.hidden, b.narrowed)
        if b.experts:
            seconds += self._experts_s(b, tokens)
        return seconds

    def _dense_s(self, tokens: int, n: int, k: int) -> float:
        """A product of weights every token passes; narrow weights are read faster, not computed."""
        seconds = self.compute.gemm_s(tokens, n, k, "bf16")
        if self.decoder.weight_bytes == BF16_BYTES:
            return seconds
        spared = n * k * (BF16_BYTES - self.decoder.weight_bytes) / self.gather_bytes_per_s
        flops = 2.0 * tokens * n * k / self.gpu.flops_per_s["bf16"]
        return max(seconds - spared, flops)

    def _experts_s(self, b: Block, tokens: int) -> float:
        d, ranks = self.decoder, self.expert_ranks
        chosen = tokens * b.experts_per_token * ranks / self.tp
        touched = self.touched(b, chosen)
        weights, width = d.expert_parameters(b) / ranks, math.ceil(b.expert_width / ranks)
        if self.whole_experts:  # as many weights and products, in fewer and larger pieces
            touched, chosen = touched / ranks, chosen / ranks
            weights, width = weights * ranks, b.expert_width
        if d.expert_bytes < 1.0 and self.gpu.architecture in MARLIN:
            return self._marlin_s(b, chosen, touched, weights)
        read_s = touched * weights * d.expert_bytes / self.gather_bytes_per_s
        groups = max(1, round(touched))
        columns = b.expert_columns // b.expert_width * width
        hidden = b.narrowed or d.hidden
        arithmetic = self.compute.gemm_s(chosen, columns, hidden, "bf16", groups)
        arithmetic += self.compute.gemm_s(chosen, hidden, width, "bf16", groups)
        if d.expert_bytes < 1.0:
            full = 2.0 * chosen * weights / self.gpu.flops_per_s["bf16"]
            arithmetic = full / self.constants.mxfp4_share
        elif d.expert_bytes == BF16_BYTES:
            factor = self.compute.constants.grouped_factor(chosen / groups)
            return max(read_s, arithmetic * factor)
        return max(read_s, arithmetic)

    def _marlin_s(self, b: Block, chosen: float, touched: float, weights: float) -> float:
        """Four-bit experts by Marlin: whole blocks of rows, and weights with their padding."""
        d, ranks = self.decoder, self.expert_ranks
        cut = 1 if self.whole_experts else ranks
        weights *= padding(d, b, self.gpu, cut, MARLIN)
        here = b.experts / ranks if self.whole_experts else b.experts
        read_s = touched * weights * d.expert_bytes / self.gather_bytes_per_s
        flops = 2.0 * marlin_rows(chosen, math.ceil(here)) * weights
        return max(read_s, flops / (MARLIN_SHARE * self.gpu.flops_per_s["bf16"]))

    @staticmethod
    def touched(b: Block, chosen: float) -> float:
        """Experts that some token chose, in the mean, when they choose so many together."""
        missed: float = (1.0 - 1.0 / b.experts) ** chosen
        return b.experts * (1.0 - missed)

    @property
    def kernel_s(self) -> float:
        """A kernel too small to fill the GPU."""
        return EAGER_KERNEL_S if self.eager else self.constants.kernel_s

    def _small_s(self, b: Block, tokens: int) -> float:
        """Kernels beside products: a floor each, and the activations they pass over."""
        kernels = (DENSE_KERNELS + PRODUCTS) * b.branches / 2 + (EXPERT_KERNELS if b.experts else 0)
        floor = self.kernel_s * kernels
        widths = 3.0 * b.branches * self.decoder.hidden
        widths += 3 * (b.dense_width + b.expert_width * b.experts_per_token) / self.tp
        if b.experts:
            widths += 2 * self.decoder.hidden * b.experts_per_token
        return floor + tokens * widths * BF16_BYTES / self.gather_bytes_per_s

    def reduce_s(self, size_bytes: float) -> float:
        """An all-reduce between tensor-parallel ranks, by the faster of NCCL and peers' memory."""
        if self.group is None:
            return 0.0
        seconds = collective("all_reduce", size_bytes, self.group).seconds
        if size_bytes <= SMALL_REDUCE_BYTES and self.group.nodes == 1:
            read = (self.tp - 1) * size_bytes / self.group.intra_bytes_per_s
            seconds = min(seconds, SMALL_REDUCE_S + read)
        return seconds

    # ---- what the lengths decide -----------------------------------------------------------------

    def prompt_s(self, tokens: int, before: int, alike: int = 1) -> float:
        """Attention's core over ``tokens`` of a prompt that ``before`` others precede.

        One of ``alike`` in the batch: a layer's kernel is launched once for all.
        """
        seconds = 0.0
        for b in self.decoder.blocks:
            if b.scan is not None:
                seconds += b.count * self._scan_s(b, tokens, alike)
                continue
            if not b.heads:
                continue
            heads = max(1, b.heads // self.tp)
            shape = Attention(
                q_len=tokens, kv_len=before + tokens, heads=heads,
                kv_heads=max(1, b.kv_heads // self.tp), head_dim=b.head_dim,
                v_head_dim=b.head_dim, causal=True, window=b.window,
                implementation="flash_attention_3",
            )  # fmt: skip
            core = self.compute.constants.attention("best")
            fused = fused_seconds(
                core, shape, batch=alike, heads=heads, kv_heads=shape.kv_heads, backward=False
            )
            seconds += b.count * max(fused / alike, self._triton_s(shape, before))
        return seconds

    def _triton_s(self, a: Attention, before: int) -> float:
        if not self.decoder.sinks or self.gpu.architecture not in FLASH_ATTENTION_2:
            return 0.0
        keys = before + a.q_len / 2
        flops = 4.0 * a.heads * a.head_dim * a.q_len * (keys if a.window is None else a.window)
        return flops / (TRITON_SHARE * self.gpu.flops_per_s["bf16"])

    def _scan_s(self, b: Block, tokens: int, alike: int) -> float:
        """A recurrence over a prompt: its bytes or its products, and chunk after chunk."""
        assert b.scan is not None, "a scan has a shape"
        moved_s = tokens * b.scan_moved * BF16_BYTES / self.tp / self.gather_bytes_per_s
        prompt = replace(b.scan, steps=b.scan.steps * tokens, recurrent=b.scan.recurrent * tokens)
        moved_s += waiting_s(prompt, 1.0 / self.tp, self.gather_bytes_per_s) / alike
        return max(moved_s, tokens * b.scan_flops / self.tp / self.gpu.flops_per_s["bf16"])

    def contexts_ahead_s(
        self, lengths: npt.NDArray[np.int64], steps: int, *, beside_prompts: bool = False
    ) -> npt.NDArray[np.float64]:
        """Reading keys, values and states of sequences that decode, now and in the next iterations.

        Parameters
        ----------
        lengths
            Of the sequences, in tokens; one more in each iteration.
        steps
            How many iterations.
        beside_prompts
            Others' prompts are in the batch.
        """
        reads = self._reads_by_head if beside_prompts else self._reads
        ahead = np.arange(steps, dtype=np.int64)
        total: npt.NDArray[np.int64] = lengths.sum() + ahead * len(lengths)
        seconds: npt.NDArray[np.float64] = total.astype(np.float64) * reads.full_s
        seconds += len(lengths) * self._states_s
        for per_token, window in reads.windows:
            read = np.minimum(lengths[:, None] + ahead[None, :], window).sum(axis=0)
            seconds += read.astype(np.float64) * per_token
        return seconds
