"""Seconds of one operator on one GPU: roofline with measured efficiencies, forward and backward.

A matrix product goes to ``gemm``, an attention core to ``attention``, everything else is bound by
memory. Backward of a product is two products: data gradient and weight gradient. Tensor parallelism
divides the shapes as the operator's ``split`` says. Times are GPU-busy time: the host's time
(``host_s``) is separate, so that the caller can decide which of the two limits.

``compiled`` stands for ``torch.compile``: chains of elementwise operators and norms become one
kernel each and keep what only they read in registers.

Not modelled: L2 residency between operators, the compiler's own time, its choice of products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from raysim.errors import CalibrationError
from raysim.hardware.specs import CpuSpec, GpuSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES, Operator
from raysim.perf import host
from raysim.perf.attention import (
    fp32_score_elements,
    fused_seconds,
    grouped_bytes,
    product_elements,
)
from raysim.perf.batch_norm import batch_norm_s
from raysim.perf.constants import (
    NAMED_KERNELS,
    FusedKernel,
    GroupedKernel,
    TrainingConstants,
)
from raysim.perf.convolution import convolution_s
from raysim.perf.gemm import granule
from raysim.perf.kernels import Dtype, Kernels
from raysim.perf.layer_norm import column_sums_s
from raysim.perf.recurrent import recurrent_s
from raysim.perf.scan import SCAN, waiting_s
from raysim.perf.shares import (
    COMPILED_KINDS,
    COMPILED_SOURCE,
    COMPILED_TRAFFIC_SHARE,
    CONV_SHARE,
    CONV_SOURCE,
    CPU_ATTENTION_SOURCE,
    FP32_FUSED_SCORE_SHARE,
    IMBALANCE_SOURCE,
    PRODUCT_SHARES,
    ROUTING_SHARE,
    ROUTING_SOURCE,
    ProductShape,
    bias_sum_s,
    fp32_attention_s,
    shard,
)
from raysim.perf.sustained import NODE_GPUS

PADDED = {"fp32": 4, "tf32": 4, "fp16": 8, "bf16": 8, "fp8": 16}
"""Elements that inductor pads rows of products to a multiple of (``get_alignment_size_dtype``)."""


class ComputeModel(Kernels):
    """How long operators take on one GPU type, beside what ``Kernels`` knows of it.

    Deterministic and stateless but for caches. ``serial``: host and device are one thread.

    Parameters
    ----------
    gpu
        Datasheet of the GPU.
    allow_tf32
        ``torch.backends.cuda.matmul.allow_tf32``; torch's default is False, so fp32 products run
        without tensor cores.
    fused_kernel
        Which kernel ``sdpa`` stands for: torch's choice, or the GPU's best.
    sustained_share
        Share of an isolated kernel's rate that products and fused attention keep in a long run,
        where power, heat and cold caches tell; 1: as measured in isolation, None: as measured in
        training runs, by the slowest of ``gpus``.
    given
        Constants of the host and the GPU, where a profile replaces them.
    cpu
        The host's processor, whose speed decides what Python costs; None: the one that raysim's
        constants were measured on.
    cuda_graphs
        Forward and backward are replayed from captured graphs: the host dispatches nothing of
        them.
    compiled
        Whether ``torch.compile`` fuses what is neither product nor attention; the host then only
        launches.
    expert_imbalance
        Rows of the most loaded routed expert over the mean, at least 1; 1 is balanced. Where
        experts are divided over ranks, the rank with that expert is the one priced: the others wait
        for it. DeepSeek-V3's technical report (arXiv 2412.19437, figure 9) shows single experts at
        several times the mean under an auxiliary loss and more without one.

    Raises
    ------
    CalibrationError
        ``sustained_share`` is not in (0, 1], or ``expert_imbalance`` is below 1.
    """

    serial = False
    cudnn_tf32 = True
    """``torch.backends.cudnn.allow_tf32``: of convolutions and recurrent layers."""
    gradient_buffer_bytes = 0
    """Of an element of the buffer to which the product itself adds weight gradients (Megatron's
    ``gradient_accumulation_fusion``: fp32's or 16 bits', as the buffer is); 0: it adds to none."""
    grouped_kernel: GroupedKernel = "fused"
    """What runs experts' products; weight gradients of ``streams`` are as fast as plain ones."""

    def __init__(
        self, gpu: GpuSpec, *, allow_tf32: bool = False, fused_kernel: FusedKernel = "sdpa",
        sustained_share: float | None = 1.0, given: TrainingConstants | None = None,
        cpu: CpuSpec | None = None, cuda_graphs: bool = False, compiled: bool = False,
        expert_imbalance: float = 1.0, gpus: int = NODE_GPUS,
    ) -> None:  # fmt: skip
        if expert_imbalance < 1.0:
            raise CalibrationError(f"expert_imbalance must be at least 1, got {expert_imbalance}")
        super().__init__(
            gpu, allow_tf32=allow_tf32, sustained_share=sustained_share, given=given, cpu=cpu,
            gpus=gpus,
        )  # fmt: skip
        self.compiled = compiled
        self.expert_imbalance = expert_imbalance
        self.passes = (
            self.host.captured() if cuda_graphs else self.host.compiled() if compiled else self.host
        )
        """What the training process's own Python costs inside forward and backward."""
        self.fused_kernel: FusedKernel = fused_kernel
        self._operators: dict[tuple[int, float, Dtype, int, bool], tuple[float, Operator]] = {}

    def operator_s(
        self, op: Operator, *, batch: float, dtype: Dtype, tp: int = 1, backward: bool = False
    ) -> float:
        """GPU-busy seconds of one operator over ``batch`` samples on one of ``tp`` ranks."""
        if backward and op.gradients == "none":
            return 0.0
        key = (id(op), batch, dtype, tp, backward)
        known = self._operators.get(key)
        if known is None:
            # The operator is kept with its answer, so that its id cannot be used again.
            seconds = self._operator_s(op, batch, dtype, tp, backward)
            known = self._operators[key] = (seconds, op)
        return known[0]

    def _operator_s(
        self, op: Operator, batch: float, dtype: Dtype, tp: int, backward: bool
    ) -> float:
        if op.attention is not None:
            return self._attention_s(op, batch, dtype, tp, backward)
        if (op.conv is not None or op.recurrent is not None) and not self.serial:
            return self._cudnn_s(op, batch, dtype, backward)
        if op.gemm is not None:
            return self._product_s(op, batch, "fp32" if op.exact else dtype, tp, backward)
        if op.batch_norm is not None and not (self.serial or self._is_fused(op)):
            return batch_norm_s(self.constants, op, batch, dtype, backward=backward)
        if op.kind == "sync":
            return 0.0 if backward else host.COPY_FIXED_S
        # A vocabulary-parallel look-up still writes its whole output on every rank.
        share = tp if op.split != "none" and op.kind != "embedding" else 1
        seconds = self._passes_s(op, batch, dtype, share, backward)
        if op.kind not in PRODUCT_SHARES:
            return seconds
        self.constants.provenance[op.kind] = CONV_SOURCE if op.kind == "conv" else SCAN
        flops = op.flops
        if backward:
            flops = 2.0 * flops if op.flops_backward is None else op.flops_backward
        rate = self._rate(dtype) * PRODUCT_SHARES[op.kind]
        return max(seconds, flops * batch / share / rate)

    def _passes_s(
        self, op: Operator, batch: float, dtype: Dtype, share: int, backward: bool
    ) -> float:
        """Kernels bound by memory, on one of ``share`` ranks that divide what they move."""
        moved, fixed, indexed = op.moved, op.moved_fixed, op.indexed
        if backward:
            moved = op.backward_moved
            fixed, indexed = op.moved_fixed_backward, op.indexed_backward
        if self._is_fused(op):
            self.constants.provenance["compiled"] = COMPILED_SOURCE
            moved *= COMPILED_TRAFFIC_SHARE
            indexed = 0.0
        # Around fp8 products activations stay in 16 bits.
        moved_bytes = (moved * batch + fixed) * max(2, COMPUTE_DTYPE_BYTES[dtype]) / share
        if op.kind == "routing":
            self.constants.provenance["routing"] = ROUTING_SOURCE
            moved_bytes /= ROUTING_SHARE
        seconds = self.memory_s(moved_bytes, kernels=self.launches(op, backward=backward))
        seconds += indexed * batch / share * self.constants.index_s
        norms = op.layer_norms if backward and not self._is_fused(op) else ()
        seconds += column_sums_s(self.constants, norms, batch / share, dtype)
        if op.scan is not None:
            rate = self.constants.memory_bytes_per_s
            seconds += (2.0 if backward else 1.0) * waiting_s(op.scan, batch / share, rate)
        return seconds

    def _is_fused(self, op: Operator) -> bool:
        return self.compiled and op.compiled is None and op.kind in COMPILED_KINDS

    def _shape(self, op: Operator, batch: float, tp: int) -> ProductShape:
        """A product on one of ``tp`` ranks."""
        assert op.gemm is not None
        shape = shard(op.gemm, op.split, tp) if tp > 1 else op.gemm
        rows, groups, scale, imbalance = shape.rows * batch, shape.groups, 1.0, 1.0
        if op.split == "expert" and self.expert_imbalance > 1.0:
            self.constants.provenance["expert_imbalance"] = IMBALANCE_SOURCE
            experts, imbalance = op.gemm.groups, self.expert_imbalance
            if groups < experts:  # the fullest expert and others of the mean that it leaves
                others = (experts - imbalance) / (experts - 1.0)
                rank_share = (imbalance + (groups - 1.0) * others) / groups
                rows, imbalance = rows * rank_share, imbalance / rank_share
        if op.kind == "conv":
            self.constants.provenance["conv"] = CONV_SOURCE
            scale /= CONV_SHARE
        if groups > 1 and op.kernels >= groups:  # a loop over experts: one product after another
            scale, rows, groups = scale * groups, rows / groups, 1
        weight_scale = scale
        if groups > 1:
            scale *= self.constants.grouped_factor(rows / groups, self.grouped_kernel)
            if self.grouped_kernel == "fused":
                weight_scale = scale
        return ProductShape(scale, weight_scale, rows, shape.n, shape.k, groups, imbalance)

    def _product_s(
        self, op: Operator, batch: float, dtype: Dtype, tp: int, backward: bool
    ) -> float:
        """A product: ``y = x w`` forward; ``dx = dy w'`` and ``dw = x' dy`` backward."""
        s = self._shape(op, batch, tp)
        product_s = self._kernel(op)
        if not backward:
            forward = product_s(s.rows, s.n, s.k, dtype, s.groups, imbalance=s.imbalance)
            copied = s.rows if s.k % PADDED[dtype] else 0.0
            return self._padded(op, s, dtype, s.scale * forward, (copied, s.k), weight=True)
        lead = granule(s.n, s.k)
        seconds = 0.0
        if op.of_inputs:
            data = product_s(s.rows, s.k, s.n, dtype, s.groups, lead=lead, imbalance=s.imbalance)
            # The output's gradient is written padded.
            seconds = self._padded(op, s, dtype, s.scale * data, (0.0, 0), weight=True)
        if op.of_weights:
            seconds += s.weight_scale * self._weight_product_s(op, s, dtype)
        return seconds + self._beside_products_s(op, batch, dtype, tp)

    def _cudnn_s(self, op: Operator, batch: float, dtype: Dtype, backward: bool) -> float:
        """Recurrent layers, and convolutions, backward with the bias."""
        c = self.constants
        product = c.gemm("tf32" if dtype == "fp32" and self.cudnn_tf32 else dtype)
        if op.recurrent is not None:
            return recurrent_s(c, product, op.recurrent, batch, backward=backward)
        seconds = convolution_s(c, product, op, batch, backward=backward)
        return seconds + (self._beside_products_s(op, batch, dtype, 1) if backward else 0.0)

    def _beside_products_s(self, op: Operator, batch: float, dtype: Dtype, tp: int) -> float:
        """Sums for a bias, and where gradients meet; epilogues of other kernels when compiled."""
        if op.moved_backward is None or (self.compiled if op.compiled is None else op.compiled):
            return 0.0
        own, products = batch / (tp if op.split != "none" else 1), op.of_inputs + op.of_weights
        moved = max(0.0, op.moved_backward - products * op.moved) * own
        kernels = self.launches(op, backward=True) - products
        moved_bytes = moved * (2 if op.exact else max(2, COMPUTE_DTYPE_BYTES[dtype]))
        seconds = self.memory_s(moved_bytes, kernels=max(0, kernels))
        return seconds + bias_sum_s(self.constants, op, moved / own, moved_bytes, own)

    def _padded(
        self, op: Operator, s: ProductShape, dtype: Dtype, plain_s: float,
        copied: tuple[float, int], *, weight: bool,
    ) -> float:  # fmt: skip
        """Of a product of sizes that inductor may pad (``pad_mm.py``), where that is faster.

        ``copied``: rows and columns of what is copied to be wider, beside the ``weight``. It does
        not try products that are bound by memory (``is_mm_compute_bound``).
        """
        compiled = self.compiled if op.compiled is None else op.compiled
        multiple, (rows, columns) = PADDED[dtype], copied
        n, k = (-(-size // multiple) * multiple for size in (s.n, s.k))
        if not compiled or (n, k) == (s.n, s.k) or s.groups > 1 or op.fp8 is not None or op.narrow:
            return plain_s
        touched = s.rows * (s.n + s.k) + float(s.n) * s.k
        balance = 0.5 * self.gpu.flops_per_s.get(dtype, 0.0) / self.gpu.memory_bytes_per_s
        if s.rows * s.n * s.k / touched <= balance:
            return plain_s
        moved = COMPUTE_DTYPE_BYTES[dtype] * (2.0 * rows * columns + weight * (n * k + s.n * s.k))
        padded_s = s.scale * self.gemm_s(s.rows, n, k, dtype) + self.memory_s(moved)
        return min(plain_s, padded_s)

    def _kernel(self, op: Operator) -> Callable[..., float]:
        """Seconds of the products of an operator."""
        return self.gemm_s if op.fp8 is None and not op.narrow else self.fp8_gemm_s

    def _weight_product_s(self, op: Operator, s: ProductShape, dtype: Dtype) -> float:
        """The weight gradient sums over rows; its operands' leading dimensions are still n, k."""
        rows, n, k, groups = s.rows, s.n, s.k, s.groups
        depth = max(1, round(rows / groups))
        product_s = self._kernel(op)
        seconds = product_s(float(n) * groups, k, depth, dtype, groups, lead=granule(n, k))
        seconds /= 1.0 if self.serial else self._gemm(dtype).turned
        wide = sum(size for size in (n, k) if size % PADDED[dtype])
        seconds = self._padded(op, s, dtype, seconds, (rows, wide), weight=False)
        if self.gradient_buffer_bytes:
            # Read and written in the buffer's type rather than written in 16 bits.
            moved = (2.0 * self.gradient_buffer_bytes - 2.0) * n * k * groups
            seconds += moved / self.constants.memory_bytes_per_s
        return seconds

    def weight_gradient_s(self, op: Operator, *, batch: float, dtype: Dtype, tp: int = 1) -> float:
        """The part of an operator's backward that can wait until the optimizer step.

        That is a product's second one, ``dw = x' dy``; others, norms among them, make their
        gradients in one kernel.
        """
        if op.gemm is None or op.attention is not None or not op.of_weights:
            return 0.0
        shape = self._shape(op, batch, tp)
        return shape.weight_scale * self._weight_product_s(op, shape, dtype)

    def _attention_s(
        self, op: Operator, batch: float, dtype: Dtype, tp: int, backward: bool
    ) -> float:
        a = op.attention
        assert a is not None
        batch *= a.samples
        share = tp if op.split != "none" else 1
        heads, kv_heads = -(-a.heads // share), -(-a.kv_heads // share)
        if self.compiled and op.compiled is None and a.implementation == "sdpa" and a.causal:
            a = replace(a, masked=True)  # transformers gives compiled models a mask (sdpa_mask)
        if a.implementation != "eager" and dtype in ("fp16", "bf16", "fp8"):
            c = self.constants.attention(NAMED_KERNELS.get(a.implementation, self.fused_kernel))
            seconds = fused_seconds(
                c, a, batch=batch, heads=heads, kv_heads=kv_heads, backward=backward
            )
            if backward:
                summed = grouped_bytes(a, batch=batch, heads=heads, kv_heads=kv_heads)
                seconds += self.memory_s(summed, kernels=0)
            return seconds
        if a.implementation != "eager":
            return fp32_attention_s(
                self.constants, a, batch=batch, heads=heads, kv_heads=kv_heads, backward=backward
            )
        return self._eager_attention_s(op, batch, dtype, heads, backward)

    def _eager_attention_s(
        self, op: Operator, batch: float, dtype: Dtype, heads: int, backward: bool
    ) -> float:
        """Two batched products (four in backward), and the kernels between them.

        In 16 bits those are what the operator says; tables count fp32's casts too, so that in fp32
        kernels are counted by their passes. Fused kernels, a CPU's, move a share of the scores.
        """
        a = op.attention
        assert a is not None
        count = max(1, round(batch * heads))
        rows = float(count) * a.q_len
        lead, kind = granule(a.kv_len, a.head_dim), "fp32" if op.exact else dtype
        scores = self.gemm_s(rows, a.kv_len, a.head_dim, kind, count, lead=lead)
        lead = granule(a.kv_len, a.v_head_dim)
        values = self.gemm_s(rows, a.v_head_dim, a.kv_len, kind, count, lead=lead)
        times, size = 2.0 if backward else 1.0, COMPUTE_DTYPE_BYTES[dtype]
        share, indexed = heads / a.heads, 0.0
        if a.implementation != "eager":
            self.constants.provenance["attention.fp32"] = CPU_ATTENTION_SOURCE
            moved = fp32_score_elements(a, backward=backward) * FP32_FUSED_SCORE_SHARE
        elif size > 2:
            moved = fp32_score_elements(a, backward=backward)
        else:
            whole = op.moved if not backward else op.backward_moved
            moved = max(0.0, whole - times * (1 + op.exact) * product_elements(a))
            indexed = op.indexed_backward if backward else op.indexed
        kernels = max(1, self.launches(op, backward=backward) - (4 if backward else 2))
        between = self.memory_s(moved * batch * share * size, kernels=kernels)
        between += indexed * batch * share * self.constants.index_s
        return times * (scores + values) + between

    def launches(self, op: Operator, *, backward: bool = False) -> int:
        """CUDA kernels a pass launches for the operator."""
        count = op.backward_kernels if backward else op.kernels
        return min(1, count) if self._is_fused(op) else count

    def host_s(self, op: Operator, *, backward: bool = False) -> float:
        """Seconds the host takes to dispatch an operator, its modules not included."""
        if backward and op.gradients == "none":
            return 0.0
        kernels = self.launches(op, backward=backward)
        price = self.passes.backward_s if backward else self.passes.forward_s
        return price(op.dispatched, kernels)

    def hooks_s(self, operators: Iterable[Operator]) -> float:
        """Seconds the host takes to hand what their nodes save to Python's hooks, once."""
        nodes = sum(op.dispatched for op in operators if op.gradients != "none")
        return nodes * self.passes.saved_s
