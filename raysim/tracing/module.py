"""Any ``torch.nn.Module`` into the layer table, by running it once on the meta device.

The module is copied without its data (``copy.deepcopy`` with every tensor replaced by a meta one),
put in training mode and run forward and backward on shapes alone: no memory, no arithmetic, and the
user's module and random state stay as they were. What is heard is divided by the batch.

Layers are cut at the longest ``ModuleList`` or ``Sequential`` of repeated blocks, and at the other
stacks of blocks beside it (a decoder's beside an encoder's, a ResNet's four); a plain
``Sequential`` gives one layer per child, as DeepSpeed's PipelineModule sees it.

Nothing is marked as divisible: of parameters that are ``DTensor`` a rank's parts are the table's.

Not modelled: data-dependent control flow,
activation checkpointing inside the module (the plan decides on that).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from raysim.errors import Problem, ScenarioError
from raysim.models.table import Model
from raysim.tracing import own_operators
from raysim.tracing.attention import HALF
from raysim.tracing.autocast import Casts
from raysim.tracing.copies import UNCOPIED, copy_of
from raysim.tracing.functions import Functions
from raysim.tracing.kernels import stood_in
from raysim.tracing.layers import assemble
from raysim.tracing.operators import tensors
from raysim.tracing.peers import exchange_gradients, unheard
from raysim.tracing.recording import Listener
from raysim.tracing.recurrent import cudnn_recurrent
from raysim.tracing.storages import is_spread, key_of
from raysim.tracing.walk import LOSS, Walk, class_name, is_expert, is_exported

_UNCOMPILED = (RuntimeError, TypeError, ValueError, AssertionError, AttributeError, KeyError)
"""What AOTAutograd raises of a forward that it cannot trace; the forward itself has run before."""
_SHARED = (torch.Generator, torch.distributed.ProcessGroup)
"""What a module may have that its copy has too: neither can be copied."""
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a trace asks of the program that its module runs in, and tells it."""

    unknown: Callable[[torch.dtype], Any]
    """What a value that nobody knows is taken for (a random number that decides on a layer);
    without a script the trace is refused there."""
    kept: Callable[[Sequence[bool], Collection[int]], object] = lambda *_: None
    """Told which of the example's tensors backward keeps, in order, and identities of all storages
    that it keeps."""
    lets_go: bool = False
    """Of the module's outputs, once the loss has read them."""
    answers: bool = False
    """Forward alone, without gradients and in the modes that the module's parts are in."""
    casts_itself: Callable[[torch.dtype], object] = lambda _: None
    """Told of the type that a module of fp32 weights casts them to, without autocast."""
    held: Callable[[], Sequence[torch.Tensor]] = tuple
    """Once the loss has run: tensors that it made and that live until backward is over."""


def trace(
    module: torch.nn.Module,
    example_inputs: Any,
    *,
    name: str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    say: Callable[[str], object] | None = None,
    script: Script | None = None,
) -> Model:
    """The layer table of ``module``, as one training step on ``example_inputs`` shows it.

    Parameters
    ----------
    module
        A copy of it runs on the meta device, in training mode unless a ``script`` answers.
    example_inputs
        A tensor, a sequence of positional or a mapping of keyword arguments; real or meta. The
        first one's leading dimension is the batch: of two samples or more, that what grows shows.
    name
        Of the model; None: its class name.
    loss
        From the module's output to a scalar. None: the output's ``loss`` if it has one (Hugging
        Face, given labels), else backward starts from the outputs.
    dtype
        Floating-point parameters and inputs are taken in this type; None: as they are. Trace in the
        type that training will use: casts to fp32 only show in a 16-bit module.
    autocast
        Forward and loss run under ``torch.autocast`` to this type; parameters are fp32. For plans
        with ``DdpSettings(autocast=...)``, whose engine adds what copies of weights take.
    say
        Told of a region of ``torch.compile`` that the compiler could not be asked about.
    script
        Of a program that runs, which says and is told more.

    Raises
    ------
    ValueError
        ``example_inputs`` holds no tensor with a batch dimension.
    ScenarioError
        The module cannot be traced: its control flow depends on data, it uses an operator without
        a meta kernel, it cannot be copied, or it checkpoints activations itself.
    """
    how = _How(name, loss, dtype, autocast, say, script)
    found = _heard(module, example_inputs, how, None)
    if isinstance(found, torch.dtype):
        if script is not None:
            script.casts_itself(found)
        found = _heard(module, example_inputs, how, found)
    assert isinstance(found, Model), "told what it computes in"
    return found


class _How(NamedTuple):
    """``trace``'s arguments but for the module and its inputs."""

    name: str | None
    loss: Callable[[Any], torch.Tensor] | None
    dtype: torch.dtype | None
    autocast: torch.dtype | None
    say: Callable[[str], object] | None
    script: Script | None


def _heard(
    module: torch.nn.Module, example_inputs: Any, how: _How, computes: torch.dtype | None
) -> Model | torch.dtype:
    """The table; or, of fp32 weights that the forward casts itself, what most products run in.

    ``computes`` is that type, once it is known.
    """
    name, loss, dtype, autocast, say, script = how
    batch = samples(example_inputs)
    _refuse(module)
    answers = script is not None and script.answers
    model = _copied(module, partial(_shape_of, dtype=dtype), as_it_is=answers)
    given = tree_map_only(torch.Tensor, lambda t: _shape_of(t, dtype), example_inputs)
    stacks, cuts = _cuts(model)
    weights = _compute_dtype(model, given)
    walk = Walk(model, cuts, weights)
    compute = computes or autocast or weights
    unknown = script.unknown if script else None
    listener = Listener(walk, model, batch=batch, width=compute.itemsize, unknown=unknown)
    asked = _introduce(given, example_inputs, listener)
    casts = None if autocast is None else Casts(autocast, listener.copy_weight)
    with unheard() if is_spread(model) else nullcontext():
        outputs, has_loss = _run(model, given, loss, listener, casts, graph=not answers)
        exchange_gradients(model, walk, listener.width)
    ran = max(listener.product_flops, key=lambda t: listener.product_flops[t], default=compute)
    if ran in HALF and compute == torch.float32 and autocast is None:
        return ran
    listener.hold(script.held() if script else ())
    own_operators.tell(say, listener.own_operators)
    if any(c.compiled for v in walk.visits for c in v.calls):
        with _saying(say):
            _compile(module, given, loss, listener, dtype, autocast, outputs)
    _tell(script, walk, asked, listener)
    return assemble(
        walk, listener, outputs, name=name or type(module).__name__,
        architecture=type(module).__name__, first=_leading(given), compute=compute,
        config_dtype=DTYPES.get(weights), stacked=stacks, has_loss=has_loss,
        lets_go=script is not None and script.lets_go and loss is not None,
    )  # fmt: skip


def _tell(script: Script | None, walk: Walk, given: Any, listener: Listener) -> None:
    """What backward keeps."""
    if script is None:
        return
    keys = {k.key for v in walk.visits for c in v.calls for k in c.keeps}
    script.kept([listener.key(t) in keys for t in tensors(given)], keys)


def _introduce(given: Any, real: Any, listener: Listener) -> list[torch.Tensor]:
    """Inputs that grow with the batch, and those with values; a model may add to a dictionary."""
    asked = list(tensors(given))
    for t, own in zip(asked, tensors(real), strict=True):
        if t.dim() and t.shape[0] == listener.batch:
            listener.mark(t)
        if not own.is_floating_point():
            listener.values.learn(t, own)
    return asked


@contextmanager
def _saying(say: Callable[[str], object] | None) -> Iterator[None]:
    """Go on without the compiler where it fails."""
    try:
        yield
    except _UNCOMPILED as error:
        if say is not None:
            say(f"torch.compile cannot be followed, what it keeps is eager's: {_first(error)}")


def _refuse_spread(model: torch.nn.Module) -> None:
    """Fake tensors of parts are not followed."""
    if is_spread(model):
        raise RuntimeError("its parameters are DTensor")


def _compile(
    module: torch.nn.Module,
    given: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    listener: Listener,
    dtype: torch.dtype | None,
    autocast: torch.dtype | None,
    outputs: Sequence[torch.Tensor],
) -> None:
    """Have the regions of ``torch.compile`` keep and move what they do once compiled."""
    from raysim.tracing import compiled, joint  # AOTAutograd takes long to import

    _refuse_spread(module)
    visits = listener.walk.visits
    instead = compiled.stand_ins(visits)
    paths = {i: v.path for i, v in enumerate(visits) if v.path is not None}
    outside = (e for v in visits for e in v.entries if e.path == LOSS)
    compiles_loss = all(c.compiled for e in outside for c in e.calls)

    def build(made_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
        return _copied(module, lambda t: made_of(_shape_of(t, dtype)))

    def run(inner: torch.nn.Module, inputs: Any) -> list[torch.Tensor]:
        out = _call(inner, inputs)
        own = _own_loss(out)
        value = loss(out) if loss is not None and compiles_loss else own
        starts = [value] if isinstance(value, torch.Tensor) else list(tensors(out))
        return [t for t in starts if t.requires_grad]

    halves = joint.partition(
        build, given, run,
        lambda inner: Walk(inner, _cuts(inner)[1], _compute_dtype(inner, ())),
        skipped=[(paths[i], paths[i - 1]) for i in sorted(instead)], autocast=autocast,
    )  # fmt: skip
    compiled.rewrite(halves, visits, instead, listener, set(map(listener.key, outputs)))
    listener.has_compiled = True


def leading(tree: object) -> torch.Tensor | None:
    """The first tensor, whose leading dimension is the batch; a vector only if all are.

    transformers 4 gives a model its cache's positions before its tokens.
    """
    found = [t for t in tensors(tree) if t.dim()]
    return next((t for t in found if t.dim() > 1), next(iter(found), None))


def samples(tree: object) -> int:
    """The batch: of a list of pictures, as detectors take them, how many there are.

    Raises
    ------
    ValueError
        There is no tensor, or an empty one.
    """
    first: Any = tree
    while isinstance(first, tuple | Mapping) and first:
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    if isinstance(first, list) and first and all(map(_is_picture, first)):
        return len(first)
    return int(_leading(tree).shape[0])


def _is_picture(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.dim() == 3 and given.is_floating_point()


def _leading(example_inputs: Any) -> torch.Tensor:
    first = leading(example_inputs)
    if first is None or first.shape[0] == 0:
        raise ValueError(
            "example_inputs: the first tensor's leading dimension is the batch; found "
            + ("no tensor" if first is None else f"shape {tuple(first.shape)}")
        )
    return first


def _refuse(module: torch.nn.Module) -> None:
    if any(getattr(m, "gradient_checkpointing", False) is True for m in module.modules()):
        raise ScenarioError(
            f"{type(module).__name__} checkpoints activations itself; call "
            "gradient_checkpointing_disable() and ask for checkpointing in the plan instead"
        )
    for path, p in module.named_parameters():
        if isinstance(p, torch.nn.UninitializedParameter):
            raise ScenarioError(
                f"parameter {path} has no shape yet; run the lazy module once first"
            )


def _shape_of(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor without its data, strides kept."""
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    made = torch.empty_like(tensor, dtype=kind, device="meta")
    return made.requires_grad_(tensor.requires_grad)


def _made_of_others(part: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Tensors that autograd has made and that it keeps (log-probabilities): none can be copied."""
    kept = tensors(
        [v for v in vars(part).values() if isinstance(v, list | tuple | dict | torch.Tensor)]
    )
    return {id(t): t for t in kept if t.grad_fn is not None}


def _copied(
    module: torch.nn.Module, made_of: Callable[[torch.Tensor], torch.Tensor],
    *, as_it_is: bool = False,
) -> torch.nn.Module:  # fmt: skip
    """A copy of other tensors; shared storage stays shared.

    In training mode, but for batch norms of a model that evaluates (one picture may be too little
    for them to train on), or ``as_it_is``.
    """
    memo: dict[int, Any] = {}
    twins: dict[tuple[object, ...], torch.Tensor] = {}
    for tensor in _tensors_of(module):
        parameter = isinstance(tensor, torch.nn.Parameter)
        place = (key_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        twin = twins.get((parameter, *place))
        if twin is None:
            twin = made_of(tensor.detach())
            if parameter:
                twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
                for said in ("allreduce", "group_name"):  # of experts
                    if hasattr(tensor, said):
                        setattr(twin, said, getattr(tensor, said))
            twins[parameter, *place] = twin
        memo[id(tensor)] = twin
    for part in module.modules():  # what they draw is not known, and a copy's state is a tensor
        memo |= {id(v): v for v in vars(part).values() if isinstance(v, _SHARED)}
        memo |= _made_of_others(part)
    try:
        model = copy_of(module, memo)
    except UNCOPIED as error:
        raise ScenarioError(
            f"{type(module).__name__} cannot be copied for tracing: {error}"
        ) from error
    if as_it_is:
        return model
    model.train()
    if not module.training:
        for part in model.modules():
            part.training &= not isinstance(part, _BatchNorm)
    return model


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers and tensors kept as plain attributes."""
    for m in module.modules():
        for values in (m._parameters, m._buffers, vars(m)):  # noqa: SLF001 (duplicates included)
            yield from (v for v in values.values() if isinstance(v, torch.Tensor))


def _compute_dtype(model: torch.nn.Module, given: Any) -> torch.dtype:
    """The floating-point type of most parameter elements; without any, of the inputs.

    Weights of 8 bits are multiplied in 16.
    """
    sizes: Counter[torch.dtype] = Counter()
    for p in model.parameters():
        if p.dtype == torch.int8:
            sizes[torch.bfloat16] += p.numel()
    for t in [*model.parameters(), *tensors(given)]:
        if t.is_floating_point():
            sizes[t.dtype] += t.numel()
    return sizes.most_common(1)[0][0] if sizes else torch.get_default_dtype()


def _cuts(
    model: torch.nn.Module,
) -> tuple[Literal["sequential", "stacks", "children"], list[torch.nn.Module]]:
    """How layers are cut, and the modules that become layers."""
    if isinstance(model, torch.nn.Sequential):
        return "sequential", list(model)
    stacks = sorted(_stacks(model), key=_longest_first)
    if not stacks:
        return "children", list(model.children())
    # Beside the longest stack, stacks of modules with parts of their own are blocks too; a short
    # run of leaves (a head's Linear, ReLU, Linear) is not.
    blocks = [s for i, s in enumerate(stacks) if i == 0 or any(list(m.children()) for m in s)]
    return "stacks", [m for s in blocks for m in s]


def _stacks(module: torch.nn.Module) -> Iterator[list[torch.nn.Module]]:
    """Children of the outermost containers that hold two or more modules of one class.

    DeepSpeed's experts, which run beside each other, are none.
    """
    for child in module.children():
        if any(True for _ in child.parameters()) and all(map(is_expert, child.parameters())):
            continue
        if _is_numbered(child) and _repeats(child) > 1:
            yield list(child.children())
        else:
            yield from _stacks(child)


def _is_numbered(container: torch.nn.Module) -> bool:
    """Whether its modules have numbers for names: a stage of a pipeline keeps them in a dict."""
    if isinstance(container, torch.nn.ModuleDict):
        return all(name.isdecimal() for name in container)
    if is_exported(container):  # the class of its parts is said to be its own
        return all(name.isdecimal() for name, _ in container.named_children())
    return isinstance(container, torch.nn.ModuleList | torch.nn.Sequential)


def _repeats(modules: Sequence[torch.nn.Module] | torch.nn.Module) -> int:
    """How often the commonest class occurs."""
    children = modules.children() if isinstance(modules, torch.nn.Module) else modules
    return max(Counter(class_name(m) for m in children).values(), default=0)


def _longest_first(stack: list[torch.nn.Module]) -> tuple[int, int]:
    return -_repeats(stack), -sum(p.numel() for m in stack for p in m.parameters())


def _run(
    model: torch.nn.Module,
    given: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    listener: Listener,
    casts: Casts | None,
    *,
    graph: bool,
) -> tuple[list[torch.Tensor], bool]:
    """Forward, loss, backward; what the output object holds until then; whether a loss ran.

    Without a ``graph`` forward alone.
    """
    keeping = torch.autograd.graph.saved_tensors_hooks(listener.keep, lambda t: t)
    try:
        with ExitStack() as modes:
            grad = torch.set_grad_enabled(graph)
            for mode in (torch.random.fork_rng(devices=[]), grad, listener):
                modes.enter_context(mode)
            modes.enter_context(Functions(listener, casts))
            autocast = nullcontext() if casts is None else casts.running()
            with autocast, keeping, stood_in(model, listener), cudnn_recurrent(listener):
                out = _call(model, given)
                value = _own_loss(out)
                if loss is not None:
                    with listener.in_loss():
                        value = loss(out)
            starts = [value] if isinstance(value, torch.Tensor) else list(tensors(out))
            starts = [t for t in starts if t.requires_grad]
            if starts:
                with listener.in_backward():
                    torch.autograd.backward(starts, [torch.ones_like(t) for t in starts])
    except RuntimeError as error:  # NotImplementedError is one
        raise ScenarioError(_untraceable(model, listener, error)) from error
    listener.finish()
    if not isinstance(value, torch.Tensor):
        return [], False
    return [t for t in tensors(out) if t is not value], True


def _own_loss(out: Any) -> Any:
    """Of an output object that has one (Hugging Face, given labels)."""
    return out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)


def _call(model: torch.nn.Module, given: Any) -> Any:
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, (tuple, list)) else model(given)


_WHY = (
    "control flow that reads tensor values, and operators without a meta kernel, are not supported"
)


def _untraceable(model: torch.nn.Module, listener: Listener, error: Exception) -> Problem:
    where = listener.walk.where
    place = f"{type(model).__name__}.{where}" if where else type(model).__name__
    return Problem(
        message=(
            f"{place} cannot be traced on shapes alone, at {listener.running}: {_first(error)} "
            f"({_WHY})"
        )
    )


def _first(error: Exception) -> str:
    """Its first line, else what it is."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
