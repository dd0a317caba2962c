"""Which constants stand for which GPU: fitted where measured, else borrowed from its architecture.

A GPU without measurements borrows the shape constants of a measured one of the same or the nearest
architecture and keeps its own peaks; its provenance then says ``assumed``. Every choice made while
pricing is recorded under the name of the constant.

Not modelled: differences between boards of one GPU (power limit, cooling), driver versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from raysim.errors import CalibrationError
from raysim.hardware.specs import GpuSpec, Provenance
from raysim.perf import host, tables
from raysim.perf.attention import AttentionConstants
from raysim.perf.borrowed import borrow, measured_system
from raysim.perf.gemm import TF32_TURNED, GemmConstants, Layout
from raysim.perf.sustained import DIFFER, HOT_TABLES, MEASURED_HOT, NODE_GPUS, slowest_of, sustained
from raysim.perf.tables import Curve

FusedKernel = Literal["sdpa", "fa2", "fa3", "best", "triton", "flex"]
"""``sdpa``: what torch 2.11 and later choose (``check_prefer_cudnn_attention``): cuDNN on
Hopper and Blackwell, elsewhere FlashAttention 2; ``fa2``: that kernel, the flash-attn package's and
older torch's; ``fa3``: FlashAttention 3, on Hopper; ``best``: the fastest measured kernel of the
GPU (FlashAttention 3 on Hopper, TensorRT-LLM's or cuDNN's on Blackwell); ``triton``: FlashAttention
written in Triton, as llm-foundry ran it; ``flex``: what ``torch.compile`` makes of
``flex_attention``, in Triton too."""

NAMED_KERNELS: dict[str, FusedKernel] = {
    "flash_attention_1": "fa2", "flash_attention_2": "fa2", "flash_attention_3": "fa3",
    "transformer_engine": "best", "triton": "triton", "flex_attention": "flex",
}  # fmt: skip
"""Kernels that implementations of attention ask for by name."""

FLEX_SHARES = 0.90, 0.85
FLEX_SOURCE = "PyTorch's FlexAttention (He, Guessous, Liang, Dong, 2024), on A100"

GroupedKernel = Literal["fused", "streams"]
"""``fused``: one kernel for all groups (torch, Triton); ``streams``: Transformer Engine's, a cuBLAS
product per group on four streams. Measured on Blackwell only; elsewhere priced as ``fused``."""

MEASURED = "validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26"
MEMORY_SHARE = 0.90
KERNEL_FLOOR_S = 2.0e-6
INDEX_S = 1.4e-12
_MEMORY = Provenance(
    basis="measured",
    source=f"copies, sums and activations of 2^27 elements on H100, 2.99 to 3.06 of 3.35 TB/s "
    f"({MEASURED}/elementwise.csv); on others assumed",
)
_FLOOR = Provenance(
    basis="measured", source=f"add_ of one element on H100, 1.97 us ({MEASURED}/launch.csv)"
)
_INDEX = Provenance(
    basis="measured",
    source="time of broadcast, strided and casting kernels beyond their traffic, 0.6 to 1.9 ps per "
    f"element written, in steps of Llama and Qwen3 on H100 ({MEASURED}/training_operators.json); "
    "on others by their SMs",
)
INDEX_SMS = 132
"""SMs of the GPU that ``INDEX_S`` was measured on."""

_GROUPED = Provenance(
    basis="assumed",
    source="torch's grouped product as vLLM's fused experts, by rows per expert "
    "(AIConfigurator moe tables, tables/moe.csv)",
)
_STREAMS = Provenance(
    basis="measured",
    source="Transformer Engine's grouped linear on 8 B200, SimuMax v1.2 (validation/data/published/"
    "b200_grouped.json, tables/grouped.csv)",
)
_PLAIN_GROUPS = Provenance(
    basis="assumed",
    source="grouped products as fast as plain ones: MegaBlocks' block-sparse kernels reach 98.6 % "
    "of cuBLAS on A100 (arXiv 2211.15841)",
)

_LAYOUT = {
    "volta": "v100", "turing": "a100", "ampere": "a100", "ada": "a100", "hopper": "h100",
    "blackwell": "h100", "cdna3": "h100",
}  # fmt: skip
"""System whose kernels say what unaligned sizes and batches cost (``tables/layout.csv``)."""
PCIE_CARD_SHARE = 0.93
"""Efficiency of a PCIe card over the SXM module: A100 252.9 and 271.2 TFLOP/s (ml-engineering)."""
FP32_SHARE = {
    "volta": 0.90, "turing": 0.60, "ampere": 0.90, "ada": 0.70, "hopper": 0.77, "blackwell": 0.77,
    "cdna3": 0.50,
}  # fmt: skip
"""Share of the fp32 peak that products without tensor cores reach, in long runs too; assumed, but
Hopper's: fp32 rows of ``gemm.csv`` and of ``vit-fp32-b32`` in ``script_operators.json`` (19 shapes,
root mean square error 3.8 %). Their tiles run in whole waves (8.3 % if they did not).

What a product pays before its first and after its last step along k (``k_half``) is a latency, so
without tensor cores, and on slower ones than those it was measured on, it weighs as much less."""

# FlashAttention 2 where it was not measured, as a share of the 16-bit peak: (share, source).
_FLASH_2 = {
    "volta": (0.35, "memory-efficient kernel instead of flash; assumed"),
    "turing": (0.30, "memory-efficient kernel instead of flash; assumed"),
    "blackwell": (0.19, "FlashAttention-2 on B200 about as on H100; assumed"),
    "cdna3": (0.25, "composable-kernel flash on MI300X; assumed"),
}
_HEAD_DIMS = (64, 128, 192, 256)
BACKWARD_RATIO = {"fa2": 0.80, "fa3": 0.72, "trtllm": 0.83}
"""Backward's rate over forward's: A100 130-190 against 170-230 TFLOP/s, H100 400-550 against
550-740; B200 from 64 heads on, 0.83 to 0.84 (``b200_kernels.json``)."""
TRITON_BACKWARD = 0.635
"""Rate of Triton's FlashAttention over FlashAttention 2's in backward, one for both GPUs: those MPT
runs had it (``--attn_impl`` is ``triton`` in the ``submit_benchmarks.py`` that measured them). The
ten rows do not tell a slower forward apart (0.89 and 0.65 leave 1.4 % as well)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConstants:
    """What a profile may replace of a training job's constants; the defaults are raysim's own."""

    sustained_share: float | None = None
    """Share of isolated rates that one GPU keeps in a long run; None: by :func:`sustained`."""
    memory_share: float = MEMORY_SHARE
    """Share of the datasheet's bandwidth that streaming kernels reach."""
    kernel_floor_s: float = KERNEL_FLOOR_S
    """The shortest kernel."""
    operator_s: float = host.OPERATOR_S
    module_s: float = host.MODULE_S
    node_s: float = host.NODE_S
    launch_s: float = host.LAUNCH_S
    engine_s: float = host.BACKWARD_S
    clip_s: float = host.CLIP_S
    clip_tensor_s: float = host.CLIP_TENSOR_S
    collective_s: float = host.COLLECTIVE_S
    checkpoint_s: float = host.CHECKPOINT_S
    saved_s: float = host.SAVED_S
    hook_s: float = host.HOOK_S
    slice_s: float = host.SLICE_S
    instruction_s: float = host.INSTRUCTION_S
    engine_pass_s: float = host.ENGINE_PASS_S
    engine_step_s: float = host.ENGINE_STEP_S
    """Of the host, as in :class:`host.HostCosts`."""
    host_speed: float | None = None
    """Speed of the host's threads over the one those were measured on; None: by its CPU."""
    host_stream_share: float = host.CPU_STREAM_SHARE
    """Share of a host's memory bandwidth that CPU Adam and casts reach."""
    allocator_slack_frac: float | None = None
    """Reserved over allocated at the peak, minus one; None: torch's allocator is emulated."""


@dataclass(slots=True)
class GpuConstants:
    """Constants of one GPU, built per data type on first use."""

    gpu: GpuSpec
    system: str
    """Measured system whose constants are used."""
    exact: bool
    """Whether that system is this GPU."""
    memory_bytes_per_s: float
    kernel_floor_s: float
    index_s: float
    """Of an element that a kernel reaches by index arithmetic, beyond its traffic."""
    sustained_share: float
    """Factor on the rates of products and fused attention, for long runs."""
    slowest: float
    """By what the slowest GPU takes longer for them, which is in that share."""
    provenance: dict[str, Provenance]
    notes: tuple[str, ...] = ()
    _gemm: dict[str, GemmConstants] = field(default_factory=dict)
    _attention: dict[FusedKernel, AttentionConstants] = field(default_factory=dict)

    def gemm(self, dtype: str) -> GemmConstants:
        """Constants of products in ``dtype``; a type the GPU lacks runs at fp32's rate."""
        known = self._gemm.get(dtype)
        if known is None:
            known, origin = _gemm_constants(self, dtype)
            self._gemm[dtype] = known
            self.provenance[f"gemm.{dtype}"] = origin
        return known

    def grouped_factor(self, rows: float, kernel: GroupedKernel = "fused") -> float:
        """Time of a grouped product over a plain one, for so many rows per group."""
        streams = kernel == "streams" and self.gpu.architecture == "blackwell"
        curve = tables.grouped_curve(*(("b200", "grouped") if streams else (self.system,)))
        self.provenance["grouped"] = (
            _PLAIN_GROUPS if curve is None else _STREAMS if streams else _GROUPED
        )
        if curve is None:
            return 1.0
        return curve.at(min(max(rows, curve.sizes[0]), curve.sizes[-1]))[0]

    def attention(self, kernel: FusedKernel) -> AttentionConstants:
        """Constants of the fused attention kernel."""
        known = self._attention.get(kernel)
        if known is None:
            known, origin = _attention_constants(self, kernel)
            self._attention[kernel] = known
            self.provenance[f"attention.{kernel}"] = origin
        return known


def constants_for(
    gpu: GpuSpec,
    sustained_share: float | None = 1.0,
    given: TrainingConstants = TrainingConstants(),
    gpus: int = NODE_GPUS,
) -> GpuConstants:
    """Constants of ``gpu``, with the origin of those every time depends on.

    ``sustained_share`` None: as measured in training runs, or as ``given``, for the slowest of
    ``gpus``.

    Raises
    ------
    CalibrationError
        ``sustained_share`` is not in (0, 1].
    """
    provenance = {"memory_share": _MEMORY, "kernel_floor_s": _FLOOR, "index_s": _INDEX}
    slowest, hot = 1.0, sustained_share is None
    if sustained_share is None:
        slowest, provenance["gpu_cv"] = slowest_of(gpus), DIFFER
        sustained_share, provenance["sustained_share"] = sustained(gpu, gpus)
        if given.sustained_share is not None:
            sustained_share = given.sustained_share / slowest
    elif sustained_share < 1.0:
        provenance["sustained_share"] = Provenance(
            basis="assumed", source=f"given: long runs keep {sustained_share:.2f} of isolated rates"
        )
    if not 0.0 < sustained_share <= 1.0:
        raise CalibrationError(f"sustained_share must be in (0, 1], got {sustained_share}")
    notes: tuple[str, ...] = ()
    if "bf16" not in gpu.flops_per_s:
        notes = (
            f"{gpu.name} has no bf16 units: bf16 products are emulated and priced at its fp32 rate",
        )
    system, exact = measured_system(gpu)
    if hot and system in HOT_TABLES:
        system, exact = HOT_TABLES[system], False
    return GpuConstants(
        gpu=gpu,
        system=system,
        exact=exact,
        memory_bytes_per_s=gpu.memory_bytes_per_s * given.memory_share,
        kernel_floor_s=given.kernel_floor_s,
        index_s=INDEX_S * INDEX_SMS / gpu.sm_count,
        sustained_share=sustained_share,
        slowest=slowest,
        provenance=provenance,
        notes=notes,
    )


def _efficiency_scale(c: GpuConstants) -> float:
    """Factor on the borrowed efficiency; 1 for the measured part itself."""
    if c.exact:
        return 1.0
    card = PCIE_CARD_SHARE if "pcie" in c.gpu.name.lower() else 1.0
    return borrow(c.gpu).factor * card


def _slower(gpu: GpuSpec, dtype: str, row: Mapping[str, float]) -> float:
    """A multiprocessor's rate in ``dtype`` over that of the one the row was measured on."""
    peak = gpu.flops_per_s.get(dtype, gpu.flops_per_s.get("fp16", gpu.flops_per_s["fp32"]))
    return peak / gpu.sm_count / (row["peak_flops_per_s"] / row["sm_count"])


def kept(efficiency: float, slower: float) -> float:
    """What tensor cores, ``slower`` by that factor than the measured ones, keep of their peak.

    Beside them a multiprocessor fetches operands and issues instructions as fast as ever, so that
    the time lost per operation stays what it was. Assumed.
    """
    if efficiency >= 1.0 or slower >= 1.0:
        return efficiency
    return efficiency / (efficiency + (1.0 - efficiency) * slower)


def _gemm_constants(c: GpuConstants, dtype: str) -> tuple[GemmConstants, Provenance]:
    """Constants of one data type: fitted, borrowed, or without tensor cores."""
    gpu = c.gpu
    tensor = dtype != "fp32" and dtype in gpu.flops_per_s
    if dtype == "fp8" and not tensor and "bf16" in gpu.flops_per_s:
        return _gemm_constants(c, "bf16")
    by_dtype = {row["dtype"]: row for row in tables.rows("gemm", c.system)}
    shape = "fp8" if dtype == "fp8" and tensor and "fp8" in by_dtype else next(iter(by_dtype))
    row = _numbers(by_dtype[shape])
    fitted = c.exact and tensor and dtype in ("bf16", "fp16", "fp8")
    same = borrow(gpu).system == c.system or c.system == "gb200"
    peak = gpu.flops_per_s[dtype if tensor else "fp32"]
    slower = 1.0 if tensor and c.exact else _slower(gpu, shape if tensor else "fp32", row)
    share = kept(row["efficiency"], slower) * _efficiency_scale(c)
    left = tensor and (c.exact or same)
    constants = GemmConstants(
        peak_flops_per_s=row["peak_flops_per_s"] if fitted else peak,
        memory_bytes_per_s=row["memory_bytes_per_s"] if fitted else gpu.memory_bytes_per_s,
        sm_count=gpu.sm_count,
        cycles_per_s=gpu.cycles_per_s,
        efficiency=c.sustained_share * share if tensor else FP32_SHARE[gpu.architecture],
        memory_efficiency=row["memory_efficiency"],
        k_half=row["k_half"] * slower,
        tile_exponent=row["tile_exponent"],
        quantisation=row["quantisation"] if tensor else 1.0,
        sharpness=row["sharpness"],
        fixed_s=row["fixed_s"],
        split_s=row["split_s"],
        slowdown=row["slowdown"] if tensor else 0.0,
        slowdown_s=row["slowdown_s"],
        cast_passes=row["cast_passes"],
        element_bytes={"fp32": 4, "tf32": 4, "fp8": 1}.get(dtype, 2),
        output_bytes=4 if dtype in ("fp32", "tf32") else 2,
        tensor_cores=tensor,
        turned=TF32_TURNED.get(gpu.architecture, 1.0) if tensor and dtype == "tf32" else 1.0,
        layout=_layout(gpu),
        grid=tables.gemm_grid(c.system, shape) if left else None,
        sides=tables.gemm_plane(c.system, shape, "nk") if left else None,
        waves=tables.gemm_plane(c.system, shape, "waves") if left else None,
    )
    return constants, _gemm_origin(c, dtype, fitted=fitted, tensor=tensor, row=by_dtype[shape])


def _layout(gpu: GpuSpec) -> Layout:
    """What unaligned sizes and batches cost."""
    system = _LAYOUT[gpu.architecture]
    (row,) = tables.rows("layout", system)
    slower = _slower(gpu, "bf16", _numbers(tables.rows("gemm", system)[0]))
    return Layout(*(kept(float(row[f.name]), slower) for f in fields(Layout)))


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if k not in ("system", "dtype")}


def _gemm_origin(
    c: GpuConstants, dtype: str, *, fitted: bool, tensor: bool, row: dict[str, str]
) -> Provenance:
    """Where the constants of one data type come from, in words."""
    error = f"{row['error_percent']} % mean error on held-out shapes"
    if fitted:
        head = tables.meta("gemm")
        source = head.get(c.system, head["source"])
        return Provenance(basis="measured", source=f"{source}; {c.system}, {error}")
    if not tensor:
        lacks = "" if dtype == "fp32" else f"no {dtype} units on {c.gpu.name}: emulated; "
        share = FP32_SHARE[c.gpu.architecture]
        return Provenance(
            basis="assumed", source=f"{lacks}fp32 without tensor cores at {share:.2f} of its peak"
        )
    why = borrow(c.gpu).why
    return Provenance(
        basis="assumed", source=f"shape constants of {c.system} scaled to own peaks ({why})"
    )


def _attention_constants(
    c: GpuConstants, kernel: FusedKernel
) -> tuple[AttentionConstants, Provenance]:
    """Constants of the fused kernel: measured where the table holds that very kernel."""
    if kernel == "triton":
        constants, origin = _attention_constants(c, "fa2")
        text = (
            f"backward at {TRITON_BACKWARD} of FlashAttention 2's, fitted on MPT: {origin.source}"
        )
        ratio = TRITON_BACKWARD * constants.backward_ratio
        return replace(constants, backward_ratio=ratio), Provenance(basis="assumed", source=text)
    if kernel == "flex":
        constants, origin = _attention_constants(c, "fa2")
        forward, backward = FLEX_SHARES
        text = f"{forward} of FlashAttention 2's rate, backward {backward}: {FLEX_SOURCE}"
        scaled = tuple(forward * v for v in constants.flops_per_s.values)
        constants = replace(
            constants, flops_per_s=replace(constants.flops_per_s, values=scaled), diagonal=0.0,
            backward_ratio=constants.backward_ratio * backward / forward,
        )  # fmt: skip
        return constants, Provenance(basis="assumed", source=f"{text}; {origin.source}")
    if kernel == "fa3" and c.gpu.architecture != "hopper":
        constants, origin = _attention_constants(c, "fa2")
        text = f"FlashAttention 3 needs Hopper; priced as FlashAttention 2: {origin.source}"
        return constants, Provenance(basis="assumed", source=text)
    if kernel in _MEASURED_HERE and c.gpu.architecture == "hopper":
        return _measured_here(c, _MEASURED_HERE[kernel])
    if kernel == "sdpa":
        return _attention_constants(c, "best" if c.gpu.architecture == "blackwell" else "fa2")
    own = (tables.rows("attention", c.system) or tables.rows("attention", "a100"))[0]
    measured = kernel == "best" or own["kernel"] == ("fa3" if kernel == "fa3" else "fa2")
    row = own if measured else tables.rows("attention", "a100")[0]
    peak = c.gpu.flops_per_s.get("bf16", c.gpu.flops_per_s.get("fp16", c.gpu.flops_per_s["fp32"]))
    reference = float(tables.rows("gemm", row["system"])[0]["peak_flops_per_s"])
    same = measured and borrow(c.gpu).system in (c.system, "b200", "h100")
    exact = False
    if same and c.gpu.architecture not in ("volta", "turing", "cdna3"):
        exact = c.exact
        scale = 1.0 if exact else peak / reference * _efficiency_scale(c)
        text = f"{tables.meta('attention')['source']}; {row['system']} {row['kernel']}"
        text += f", {row['error_long_percent']} % mean error, sequences >= 512; backward assumed"
    else:
        share, text = _FLASH_2[c.gpu.architecture]
        scale = share * peak / float(row["flops_128"])
    kept = 1.0 / c.slowest if c.gpu.architecture in MEASURED_HOT else c.sustained_share
    constants = AttentionConstants(
        flops_per_s=_by_head_dim(row, scale * kept),
        backward_ratio=BACKWARD_RATIO[row["kernel"]],
        fixed_s=float(row["fixed_s"]),
        quantisation=float(row["quantisation"]),
        sm_count=c.gpu.sm_count,
        io_bytes_per_s=c.gpu.memory_bytes_per_s * float(row["memory_efficiency"]),
        row_elements=float(row["row_elements"]),
        grid=tables.attention_grid(row["system"], windowed=False) if exact else None,
        window_grid=tables.attention_grid(row["system"], windowed=True) if exact else None,
    )
    return constants, Provenance(basis="measured" if exact else "assumed", source=text)


_MEASURED_HERE = {"sdpa": "cudnn", "fa2": "fa2"}
"""Kernels of ``tables/fused.csv``, which are Hopper's."""


def _measured_here(c: GpuConstants, kernel: str) -> tuple[AttentionConstants, Provenance]:
    """A kernel of torch's on Hopper, forward and backward."""
    (row,) = (r for r in tables.rows("fused", "h100") if r["kernel"] == kernel)
    peak = float(tables.rows("gemm", "h100")[0]["peak_flops_per_s"])
    scale = c.sustained_share * c.gpu.flops_per_s["bf16"] / peak * _efficiency_scale(c)
    constants = AttentionConstants(
        flops_per_s=Curve(
            sizes=(64.0, 128.0), values=tuple(scale * float(row[f"flops_{d}"]) for d in (64, 128))
        ),
        backward_ratio=float(row["backward_ratio"]),
        fixed_s=float(row["fixed_s"]),
        quantisation=float(row["quantisation"]),
        sm_count=c.gpu.sm_count,
        io_bytes_per_s=c.gpu.memory_bytes_per_s * float(row["memory_efficiency"]),
        row_elements=float(row["row_elements"]),
        diagonal=float(row["diagonal"]),
        takes_masks=kernel == "cudnn",
    )
    text = f"{tables.meta('fused')['source']}; {kernel}, {row['error_percent']} % mean error"
    return constants, Provenance(basis="measured" if c.exact else "assumed", source=text)


def _by_head_dim(row: dict[str, str], scale: float) -> Curve:
    """Rates of one kernel; where A100 measured 128 only, others as on L40S, the same kernel."""
    shape = row if row["flops_64"] else tables.rows("attention", "l40s")[0]
    scale *= float(row["flops_128"]) / float(shape["flops_128"])
    known = {d: float(shape[f"flops_{d}"]) for d in _HEAD_DIMS if shape[f"flops_{d}"]}
    return Curve(
        sizes=tuple(float(d) for d in known), values=tuple(scale * r for r in known.values())
    )
