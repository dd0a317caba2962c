"""The layer table: what one training step of a model computes, stores and moves, layer by layer.

Every quantity is *per sample* at a fixed sequence length and grows linearly with the micro-batch,
so a table is built once and priced for any batch, data type or tensor-parallel degree. Models read
from a Hugging Face config and modules traced on the meta device give the same table.

Structure, outside in: ``Model`` > ``Layer`` (what pipeline partitioning and activation
checkpointing cut at) > ``Module`` (a ``torch.nn.Module`` that owns parameters directly: the unit of
ZeRO-3's fetch) > ``Operator`` (what the GPU runs).

Not modelled: data-dependent control flow; operators whose cost is not linear in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from raysim.models.shapes import BatchNorm, Collective, Convolution, LayerNorm, Recurrent, Scan

OperatorKind = Literal[
    "gemm",           # dense matrix product, or a grouped one over experts
    "attention",      # the score-softmax-value core, projections excluded
    "conv",           # convolution, priced as the GEMM it lowers to
    "scan",           # recurrence over tokens, in chunks
    "norm",           # LayerNorm, RMSNorm, BatchNorm
    "elementwise",    # activations, residual additions, dropout, rotary embedding, casts
    "embedding",      # table look-up
    "routing",        # MoE router's softmax, top-k, permutation
    "loss",           # softmax cross-entropy or another loss over logits
    "sync",           # scalars copied to the GPU from pageable memory, or from it: the host waits
    "other",
]  # fmt: skip
TensorDtype = Literal["compute", "fp32", "int64", "int32", "bool", "fp8"]
Autocast = Literal[
    "half",        # casts fp32 inputs to 16 bits: products, attention cores
    "fp32",        # casts 16-bit inputs to fp32, and returns that
    "promotes",    # takes the wider type of what it reads
    "weighs",      # by an fp32 weight: returns fp32
    "likelihood",  # cross-entropy: the log-softmax as it comes, its likelihood in fp32
]  # fmt: skip
Implementation = Literal[
    "eager", "sdpa", "flash_attention_1", "flash_attention_2", "flash_attention_3",
    "flex_attention", "transformer_engine", "triton",
]  # fmt: skip
Split = Literal["none", "column", "row", "heads", "vocab", "expert"]
Gradients = Literal[
    "all",      # of inputs and weights
    "inputs",   # of inputs alone: the weights are frozen
    "weights",  # of weights alone: nothing before them is trained
    "none",     # nothing that leads here is trained
]  # fmt: skip

FIXED_DTYPE_BYTES = {"fp32": 4, "int64": 8, "int32": 4, "bool": 1, "fp8": 1}
COMPUTE_DTYPE_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor, named relative to its layer as in the ``state_dict``."""

    name: str
    shape: tuple[int, ...]
    shard: int | None = None
    """Dimension that tensor parallelism divides; None: replicated on every tensor-parallel rank."""
    tied_to: str | None = None
    """Full name of the parameter whose storage this one shares; counted once."""
    expert: bool = False
    """Of routed experts: divided by expert parallelism, not data-replicated with the rest."""
    among: int = 0
    """Of an expert: ranks that share its mixture, where mixtures differ in that; 0: the mesh's."""
    trainable: bool = True
    sparse_rows: float = 0.0
    """Per sample, those that a look-up's sparse gradient has; 0: its gradient is dense."""
    fp8: bool = False
    """Products read it in fp8."""
    stored_bytes: float | None = None
    """Per element, where it is stored narrower than the plan says (4-bit weights)."""
    whole_bytes: float = 0.0
    """Of those, what every rank that shards the weight keeps whole beside its shard (scales)."""

    @property
    def numel(self) -> int:
        """Elements, shared storage included."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor kept from forward for backward; the same name within one layer is one tensor."""

    name: str
    numel: float
    """Elements per sample."""
    dtype: TensorDtype = "compute"
    sharded: bool = False
    """Divided by the tensor-parallel degree (True), or whole on every such rank."""
    fixed: bool = False
    """Of a weight: the elements do not grow with samples."""
    returned: bool = False
    """Backward does not need it: the model's output object holds it, while somebody holds that."""
    late: bool = False
    """Made after the fullest moment of its module's forward."""
    source: str = ""
    """The input it is a function of alone, and has the type of under autocast; an fp32 copy of one
    that is fp32 already is that tensor itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Operands:
    """Of a product whose operands are fp8: what the 16-bit tensors around it become."""

    source: str
    """Name of the 16-bit input."""
    input_bytes: float
    """Per element of the input on its way to tensor-parallel peers; scales included."""
    gradient_bytes: float
    """The same of the output's gradient."""
    reduces_amax: bool = False
    """Peers agree on a scale before they exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """Shape of a matrix product ``[rows, k] x [k, n]``; rows are per sample, over all groups."""

    rows: float
    n: int
    k: int
    groups: int = 1
    """Distinct weight matrices the rows are spread over (experts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Shape of an attention core, per sample."""

    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    causal: bool
    window: int | None = None
    """Sliding window in tokens; None: full."""
    masked: bool = False
    """sdpa with a mask of its own (a window, ALiBi): nothing is skipped."""
    implementation: Implementation = "sdpa"
    """``transformer_engine``: the GPU's best kernel, cuDNN's or FlashAttention 3."""
    visited: float | None = None
    """FlexAttention's: share of all scores in blocks that its mask leaves; None: no such mask."""
    samples: float = 1.0
    """Less where all samples are one sequence: tokens packed along the batch's dimension."""
    fused_softmax: bool = False
    """Eager, with Megatron's kernel for scale, causal mask and softmax, all in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One forward operator and what backward needs of it."""

    name: str
    kind: OperatorKind
    flops: float = 0.0
    """Forward floating-point operations per sample (a multiply-add is two)."""
    flops_backward: float | None = None
    """The same for backward; None: twice forward."""
    moved: float = 0.0
    """Activation elements read plus written by forward, per sample, in the compute dtype."""
    moved_backward: float | None = None
    """The same for backward; None: twice forward."""
    indexed: float = 0.0
    """Elements per sample that forward's kernels reach by index arithmetic rather than in a row:
    broadcasts, strided views, casts, reductions; they cost time beyond their traffic."""
    indexed_backward: float = 0.0
    """The same for backward."""
    moved_fixed: float = 0.0
    """Elements of weights that forward reads and writes besides, whatever the batch; whole, of all
    tensor-parallel ranks."""
    moved_fixed_backward: float = 0.0
    """The same for backward."""
    gemm: Gemm | None = None
    exact: bool = False
    """Its product is of fp32 tensors, whatever the compute dtype."""
    narrow: bool = False
    """Of a product: a model casts its operands to fp8 itself, in operators of their own."""
    fp8: Fp8Operands | None = None
    """Of a product: its operands are fp8; None: of the compute dtype."""
    conv: Convolution | None = None
    """Beside ``gemm``; None: priced as a plain product."""
    batch_norm: BatchNorm | None = None
    layer_norms: tuple[LayerNorm, ...] = ()
    """That its backward sums the gradients of weights of."""
    attention: Attention | None = None
    scan: Scan | None = None
    recurrent: Recurrent | None = None
    saves: tuple[Saved, ...] = ()
    """First the input, if backward needs it; a tensor saved by two operators is listed by both."""
    output: float = 0.0
    """Output elements per sample."""
    reads: tuple[Saved, ...] = ()
    """Inputs, each with its own elements, where it matters what autocast makes of them."""
    joined: tuple[str, ...] = ()
    """Inputs that another operator read before: backward adds two gradients."""
    result: str = ""
    """Name of the output, as others read it."""
    autocast: Autocast = "promotes"
    scratch: tuple[Saved, ...] = ()
    """Tensors that live within its forward: of a loss all, of another those beside its output."""
    scratch_backward: tuple[Saved, ...] = ()
    """The same for backward."""
    traced: bool = False
    """Whether ``scratch`` has all that its module has made and does not keep; else its output is
    there too."""
    left: tuple[tuple[float, int, bool], ...] = ()
    """Of a module's last one, per tensor that the module makes, does not keep and leaves to others:
    elements per sample, how many modules later somebody keeps it or it is gone, if it is late."""
    fullest_backward: float = 0.0
    """Elements per sample of all gradients there while its backward runs, at most; 0: not heard."""
    gradient: float | None = None
    """Elements per sample of the largest gradient that its backward makes of an input; None: as
    many as the first tensor that it saves."""
    waiting: tuple[Saved, ...] = ()
    """Gradients of others that wait, while its backward runs, for more to be added to them."""
    overwritten: bool = False
    """Of a compiled product that keeps its result: its gradient is written over that."""
    summed: bool = False
    """Its output's gradient is a sum of two, which are there beside it."""
    split: Split = "none"
    """How tensor parallelism divides it. A ``row`` or ``vocab`` operator's output is all-reduced in
    forward; the first saved tensor of ``column`` operators has its gradient all-reduced in backward
    (once per distinct name)."""
    collectives: tuple[Collective, ...] = ()
    """Of one that is a rank's own part of a divided one, as traced: ``split`` is ``none``."""
    kernels: int = 1
    """CUDA kernels an eager forward launches."""
    kernels_backward: int | None = None
    """The same for backward; None: twice forward."""
    dispatches: int | None = None
    """ATen operators an eager forward calls, views included: what costs the host, and leaves about
    as many autograd nodes; None: one per kernel."""
    gradients: Gradients = "all"
    """What backward makes."""
    compiled: bool | None = None
    """Whether ``torch.compile`` has made it what it is here, or left it as in eager torch; None:
    the plan says."""

    @property
    def backward_moved(self) -> float:
        """``moved_backward``, or twice forward."""
        return 2.0 * self.moved if self.moved_backward is None else self.moved_backward

    @property
    def backward_kernels(self) -> int:
        """``kernels_backward``, or twice forward."""
        return 2 * self.kernels if self.kernels_backward is None else self.kernels_backward

    @property
    def dispatched(self) -> int:
        """``dispatches``, or one per kernel."""
        return self.kernels if self.dispatches is None else self.dispatches

    @property
    def backward_flops(self) -> float:
        """Of products, per sample: as many as forward's for each of the gradients."""
        return self.flops * (float(self.of_inputs) + self.of_weights)

    @property
    def of_inputs(self) -> bool:
        """Whether backward makes gradients of inputs."""
        return self.gradients in {"all", "inputs"}

    @property
    def of_weights(self) -> bool:
        """Whether backward makes gradients of weights."""
        return self.gradients in {"all", "weights"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """What ZeRO-3's hooks see: a ``torch.nn.Module``, its own parameters and its operators."""

    name: str
    """Relative to its layer, for example ``self_attn.q_proj``."""
    cls: str
    """Class name, for example ``Linear``."""
    operators: tuple[Operator, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    @property
    def numel(self) -> int:
        """Elements of its own parameters, tied ones included (ZeRO-3 gathers them by name)."""
        return sum(p.numel for p in self.parameters)

    @property
    def has_backward(self) -> bool:
        """Whether backward gets here."""
        if self.operators:
            return any(o.gradients != "none" for o in self.operators)
        return not self.parameters or any(p.trainable for p in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Body:
    """The content of a layer, shared by identical layers so that its cost is computed once."""

    modules: tuple[Module, ...]
    """In execution order."""
    built_first: tuple[str, ...] = ()
    """Children that the layer's class builds before all others, in that order; the others are
    built as they run."""

    @property
    def built(self) -> Iterator[Parameter]:
        """Parameters in the order of ``named_parameters()``: as the modules were built."""
        children = [m.name.partition(".")[0] for m in self.modules]
        first = {name: place for place, name in enumerate(self.built_first)}
        order = sorted(
            range(len(children)), key=lambda i: first.get(children[i], len(first))
        )  # stable: the rest as it runs
        return (p for i in order for p in self.modules[i].parameters)

    @property
    def parameters(self) -> Iterator[Parameter]:
        """Parameters of all modules, in order."""
        return (p for m in self.modules for p in m.parameters)

    @property
    def operators(self) -> Iterator[Operator]:
        """Operators of all modules, in execution order."""
        return (o for m in self.modules for o in m.operators)

    def with_operators(self, change: Callable[[Operator], Operator]) -> Body:
        """The layer with other operators in the same modules."""
        modules = [replace(m, operators=tuple(map(change, m.operators))) for m in self.modules]
        return replace(self, modules=tuple(modules))

    @property
    def numel(self) -> int:
        """Trainable elements, tied ones excluded."""
        return sum(p.numel for p in self.parameters if p.trainable and p.tied_to is None)

    @property
    def flops(self) -> float:
        """Forward FLOPs per sample."""
        return sum(o.flops for o in self.operators)

    @property
    def has_backward(self) -> bool:
        """Whether backward gets here."""
        return any(m.has_backward for m in self.modules)

    def saved(self) -> dict[str, Saved]:
        """Tensors kept for backward, one per name."""
        return {s.name: s for o in self.operators for s in o.saves if s.numel}


LayerKind = Literal["embedding", "block", "norm", "head", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What pipeline stages and activation checkpoints cut at."""

    name: str
    """Prefix of its parameters in the ``state_dict``, for example ``model.layers.3``; may be
    empty.
    """
    kind: LayerKind
    cls: str
    """Class name, matched by DeepSpeed's ``type:regex`` partitioning."""
    body: Body
    output: float
    """Elements per sample handed to the next layer: what a stage sends, what a checkpoint keeps."""

    def full(self, name: str) -> str:
        """The full name of a parameter or module of it."""
        return ".".join(part for part in (self.name, name) if part)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model at one sequence length."""

    name: str
    model_type: str
    architecture: str
    layers: tuple[Layer, ...]
    seq_len: int
    """Tokens (or patches) per sample that pass through the blocks."""
    sample_unit: Literal["tokens", "images", "samples"] = "tokens"
    hidden_size: int = 0
    vocab_size: int | None = None
    config_dtype: str | None = None
    """``torch_dtype`` of the config: fp32, fp16 or bf16."""
    divisible: tuple[tuple[str, int], ...] = field(default=())
    """Config keys that tensor parallelism must divide, for example ("num_attention_heads", 32)."""

    def with_bodies(self, change: Callable[[Body], Body]) -> Model:
        """The model with other bodies; layers that share one still do."""
        return self.with_layers(lambda _: None, lambda layer: change(layer.body))

    def with_layers(
        self, told: Callable[[Layer], Hashable], change: Callable[[Layer], Body]
    ) -> Model:
        """The model with other bodies; layers that share one and are ``told`` alike still do."""
        made: dict[tuple[int, Hashable], Body] = {}
        layers = []
        for layer in self.layers:
            key = id(layer.body), told(layer)
            if key not in made:
                made[key] = change(layer)
            layers.append(replace(layer, body=made[key]))
        return replace(self, layers=tuple(layers))

    @staticmethod
    def from_hf(path: str | Path, *, seq_len: int | None = None) -> Model:
        """The layers of a Hugging Face ``config.json``.

        Parameters
        ----------
        path
            The file, or the folder it is in.
        seq_len
            Tokens per sample; None: the model's own limit.

        Raises
        ------
        ScenarioError
            The file cannot be read, or its ``model_type`` is not known.
        """
        from raysim.models.config import read_config
        from raysim.models.huggingface import build

        config = read_config(path)
        return build(config, seq_len=seq_len, file=config.file)

    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its full name, tied ones included."""
        for layer in self.layers:
            for p in layer.body.parameters:
                yield layer.full(p.name), p

    @cached_property
    def built(self) -> tuple[str, ...]:
        """Full names of all parameters in the order of ``named_parameters()``."""
        return tuple(layer.full(p.name) for layer in self.layers for p in layer.body.built)

    @cached_property
    def scans(self) -> bool:
        """Whether there are recurrences over tokens in it."""
        return any(o.kind == "scan" for layer in self.layers for o in layer.body.operators)

    @cached_property
    def num_parameters(self) -> int:
        """Elements as ``sum(p.numel() for p in model.parameters())``: shared storage once."""
        return sum(p.numel for _, p in self.parameters() if p.tied_to is None)

    @cached_property
    def num_trainable(self) -> int:
        """Elements that get gradients and optimizer state."""
        return sum(layer.body.numel for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        """Forward FLOPs per sample."""
        return sum(layer.body.flops for layer in self.layers)

    @cached_property
    def step_flops(self) -> float:
        """Model FLOPs of a training step per sample: three times forward's where all is trained."""
        return sum(
            o.flops + o.backward_flops for layer in self.layers for o in layer.body.operators
        )
