"""What one optimizer step moves through memory, per element, by optimizer and kernel style.

Optimizer steps are bound by memory: time is bytes over bandwidth. ``fused`` is one kernel per chunk
of tensors that reads and writes each state once (DeepSpeed's FusedAdam, torch ``fused=True``);
otherwise torch's ``foreach`` runs one multi-tensor kernel per arithmetic step, each reading and
writing again. Of a sparse gradient a step goes over its rows, table by table.

Master weights, gradients and states are fp32. Not modelled: capturable variants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raysim.errors import CalibrationError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraffic:
    """Bytes one step moves per element, and its multi-tensor kernels."""

    fused_bytes: float
    foreach_bytes: float
    foreach_kernels: int


# Fused: each fp32 state r+w 8, gradient r 4. Foreach: the passes of torch/optim, `_multi_tensor_*`:
# Adam = decay p 8, lerp m 12, mul v 8, addcmul v 12, sqrt 8, div 8, add 8, addcdiv p 16.
# LAMB = FusedLamb's two stages 28 + 12 and three norms 12. Adafactor has no fused kernel.
_TRAFFIC = {
    "adam": StepTraffic(fused_bytes=28, foreach_bytes=80, foreach_kernels=8),
    "adam8bit": StepTraffic(fused_bytes=16, foreach_bytes=16, foreach_kernels=1),
    "sgd": StepTraffic(fused_bytes=12, foreach_bytes=20, foreach_kernels=2),
    "sgd_momentum": StepTraffic(fused_bytes=20, foreach_bytes=40, foreach_kernels=4),
    "lion": StepTraffic(fused_bytes=20, foreach_bytes=56, foreach_kernels=6),
    "adagrad": StepTraffic(fused_bytes=20, foreach_bytes=52, foreach_kernels=5),
    "lamb": StepTraffic(fused_bytes=52, foreach_bytes=120, foreach_kernels=14),
    "adafactor": StepTraffic(fused_bytes=64, foreach_bytes=64, foreach_kernels=12),
    "muon": StepTraffic(fused_bytes=20, foreach_bytes=48, foreach_kernels=5),
}


class SparsePart(NamedTuple):
    """What torch runs for one table whose gradient is sparse."""

    kernels: int
    passes: int
    """How often each element of the gradient's rows is read or written, states' rows too."""
    operators: int
    """Of the host, views and constructors among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseStep:
    """One step of one table."""

    rest: SparsePart
    start: SparsePart | None = None
    """What makes indices unique before; the host waits for their number."""
    held: int = 0
    """Tensors as large as the gradient's rows that it has at once."""


# ``_coalesce_sparse_cuda``: a copy, two counts, a sort of ten kernels, unique, sums. Added to a
# dense tensor, rows are an ``index_add_`` (``add_out_dense_sparse_cuda``: 1 kernel, 3 passes, 7
# operators). ``sparse_mask`` of a state: ones, a gather, its indices copied, a product (4, 4, 12).
# ``_make_sparse``: 2 operators. SparseAdam masks two states, adds to three tensors and has 11
# elementwise operators of 27 passes; Adagrad masks one, adds to two, and has 4 of 9
# (``torch/optim/_functional.py``, ``adagrad.py``, 2.13; operators as its profiler lists them).
_COALESCE = SparsePart(kernels=15, passes=2, operators=7)
SPARSE = {
    "sgd": SparseStep(rest=SparsePart(kernels=1, passes=3, operators=7)),
    "adagrad": SparseStep(
        start=_COALESCE, rest=SparsePart(kernels=10, passes=19, operators=34), held=4
    ),
    "adam": SparseStep(
        start=_COALESCE, rest=SparsePart(kernels=22, passes=44, operators=62), held=6
    ),
}
"""By family (:func:`optimizer_key`). Not modelled: how many of a batch's indices are alike."""

_NAMES = {
    "adam": "adam", "adamw": "adam", "fusedadam": "adam", "deepspeedcpuadam": "adam",
    "adamwtorch": "adam", "adamwtorchfused": "adam", "adamwhf": "adam", "radam": "adam",
    "onebitadam": "adam", "zerooneadam": "adam", "muadam": "adam", "muadamw": "adam",
    "nadam": "adam", "sparseadam": "adam",
    "adam8bit": "adam8bit", "adamw8bit": "adam8bit", "pagedadamw8bit": "adam8bit",
    "pagedadam8bit": "adam8bit", "adamwbnb8bit": "adam8bit",
    "sgd": "sgd", "musgd": "sgd", "lion": "lion", "fusedlion": "lion", "deepspeedcpulion": "lion",
    "adagrad": "adagrad", "deepspeedcpuadagrad": "adagrad",
    "lamb": "lamb", "fusedlamb": "lamb", "onebitlamb": "lamb", "adafactor": "adafactor",
    "muon": "muon",
}  # fmt: skip

STEP_HOST_S = {
    "adam": (34e-6, 3.0e-6, 110e-6, 9.1e-6), "sgd": (34e-6, 1.7e-6, 50e-6, 2.0e-6),
    "sgd_momentum": (34e-6, 1.7e-6, 50e-6, 2.0e-6), "adagrad": (72e-6, 8.9e-6, 72e-6, 8.9e-6),
}  # fmt: skip
"""Of the host: a step of torch's, fused, then foreach: itself, and each of its tensors, launches
among them; AdamW, SGD with momentum and Adagrad over 1 to 512 tiny tensors beside an H100
(host_training.csv, 2026-11-26), times the host's 0.59 of the reference (``host.PROVENANCE``)."""
ADAFACTOR_TENSOR_S = 91e-6
"""The same of each vector in Adafactor's loop, torch's and transformers' (host_training.csv)."""
ADAFACTOR_MATRIX_OPERATORS = 9
"""Of a matrix, whose second moment is rows' and columns' means: 22 operators where a vector has 13
(torch's, counted; transformers' has 10 more, two of them views)."""
MULTI_TENSOR_SHARE = 0.89
MULTI_TENSOR_SHARE_16 = 0.79
"""Bandwidth that multi-tensor kernels keep of streaming ones', over 32- and 16-bit elements:
AdamW on H100, foreach and fused, 1e8 and 1e9 parameters (validation/data/nvidia-h100-80gb-hbm3-
1gpu/2026-11-26/optimizer.csv): 2.67 and 2.3 to 2.4 TB/s of 3.0."""
MUON_STEPS = 5
"""Newton-Schulz iterations (Jordan, Muon, 2024)."""
MUON_OPERATORS = 9 + 3 * MUON_STEPS
"""Of the host for each matrix: two ``lerp``, cast, norm, clamp, division, products, weight decay,
update (``torch/optim/_muon.py``, which loops over them, as DeepSpeed's does)."""


def is_known(name: str) -> bool:
    """Whether :func:`optimizer_key` has a family for it."""
    return _bare(name) in _NAMES


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def optimizer_key(name: str, *, momentum: float = 0.0) -> str:
    """The family of an optimizer's name as DeepSpeed, torch or Hugging Face spell it.

    Raises
    ------
    CalibrationError
        No traffic is known for that optimizer.
    """
    key = _NAMES.get(_bare(name))
    if key is None:
        known = ", ".join(sorted(set(_NAMES.values())))
        raise CalibrationError(f"no step cost known for optimizer {name!r}; families: {known}")
    return "sgd_momentum" if key == "sgd" and momentum else key


def step_bytes(key: str, *, fused: bool, low_precision_copy: bool) -> float:
    """Bytes per element of one step; foreach re-reads the master to write the 16-bit copy."""
    traffic = _TRAFFIC[key]
    copy = (2.0 if fused else 6.0) if low_precision_copy else 0.0
    return (traffic.fused_bytes if fused else traffic.foreach_bytes) + copy


def step_traffic(
    key: str,
    numel: float,
    *,
    fused: bool,
    foreach: bool,
    tensors: int,
    low_precision_copy: bool,
    element_bytes: float,
) -> tuple[float, int]:
    """Bytes of a GPU's step, as many as a streaming kernel moves in its time; and its kernels."""
    each = step_bytes(key, fused=fused, low_precision_copy=low_precision_copy)
    moved = numel * each * element_bytes / 4.0
    if not fused and not foreach:
        return moved, loop_kernels(key, max(1, tensors))
    share = MULTI_TENSOR_SHARE if element_bytes > 2.0 else MULTI_TENSOR_SHARE_16
    return moved / share, step_kernels(key, fused=fused)


def step_host_s(
    key: str, tensors: int, *, fused: bool, foreach: bool, eager_s: float, matrices: int = 0
) -> float:
    """Seconds of the reference host for one step over so many tensors; ``eager_s``: an operator."""
    if key == "muon":
        return (tensors + matrices * (MUON_OPERATORS - 1)) * eager_s
    if key == "adafactor":
        return tensors * ADAFACTOR_TENSOR_S + matrices * ADAFACTOR_MATRIX_OPERATORS * eager_s
    if not fused and not foreach:
        return loop_kernels(key, tensors) * eager_s
    if key not in STEP_HOST_S:
        return step_kernels(key, fused=fused) * eager_s
    own, each, own_foreach, each_foreach = STEP_HOST_S[key]
    return own + tensors * each if fused else own_foreach + tensors * each_foreach


def loop_kernels(key: str, tensors: int) -> int:
    """Kernels of torch's loop over tensors: each does to one what ``foreach`` does to all."""
    return tensors * _TRAFFIC[key].foreach_kernels


def step_kernels(key: str, *, fused: bool) -> int:
    """Multi-tensor kernels per chunk of tensors."""
    return 1 if fused else _TRAFFIC[key].foreach_kernels


def muon_products(rows: int, columns: int) -> tuple[tuple[int, int, int], ...]:
    """Products ``[m, k] x [k, n]`` of one iteration of Newton-Schulz, as ``(m, n, k)``.

    Of ``X`` that has no more rows than columns, transposed if need be: ``X X^T``, that squared,
    and it times ``X`` (``_zeropower_via_newtonschulz``); the last two add what they are given.
    """
    short, long = sorted((rows, columns))
    return (short, short, long), (short, short, short), (short, long, short)
