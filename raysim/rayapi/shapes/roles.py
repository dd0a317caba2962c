"""Forwards that are alike: what they give, what they were given, and the model that they are of."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from raysim.models.table import FIXED_DTYPE_BYTES, Model
from raysim.rayapi.shapes import spread
from raysim.rayapi.shapes.compiled import marks
from raysim.rayapi.shapes.known import META
from raysim.rayapi.shapes.optimizers import SPARSE
from raysim.tracing.module import leading, samples
from raysim.tracing.operators import tensors
from raysim.tracing.storages import PLAIN, key_of

_WHICH = ("rank", "idx", "index", "id", "number", "count", "step", "steps", "name", "training")
"""Attributes that differ among modules alike: of layers, of ranks, in the course of a run."""
_PLAIN = (bool, int, float, str, type(None))
"""Arguments of a forward that may decide on what it does."""
_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)

Recomputing = Literal["", "reentrant", "non-reentrant"]
"""``torch.utils.checkpoint``, by ``use_reentrant``; empty: nothing is."""


@dataclass(kw_only=True)
class Role:
    """What a forward gives, and once a backward has followed, the model it was of."""

    outputs: Any
    model: Model | None = None
    recomputes: Recomputing = ""
    """How it checkpoints activations."""
    held: bool = False
    """The script has its output in a variable when backward begins."""
    lasts: bool = False
    """And until the next forward has made another."""
    half: torch.dtype | None = None
    """What it casts to within."""
    casts: torch.dtype | None = None
    """What its model casts fp32 weights to itself."""
    kept: frozenset[int] = frozenset()
    """Storages of the script's own tensors that its backward keeps, in its first step."""
    script_bytes: int | None = None
    """What the script itself has on the GPU; None: nobody has looked yet."""
    batch: int = 1
    input_bytes: int = 0
    between: tuple[Any, ...] = ()
    """Keys of the traced forwards that it follows from, which was not (``shapes.sizes``)."""
    sizes: tuple[int, ...] = ()
    """Then, of all that it is given."""

    def kept_bytes(self, parameters: Iterable[torch.Tensor]) -> int:
        """Of its batch, what its model keeps for backward; recomputed, each layer's output."""
        assert self.model is not None, "of a role that nobody has traced"
        width = max(p.element_size() for p in parameters) if self.half is None else 2
        widths = {"compute": width} | FIXED_DTYPE_BYTES
        sizes = (
            layer.output * width if self.recomputes
            else sum(s.numel * widths[s.dtype] for s in layer.body.saved().values())
            for layer in self.model.layers
        )  # fmt: skip
        return round(self.batch * sum(sizes))

    def learn_kept(self, example: Any, given: Sequence[bool], storages: Collection[int]) -> None:
        """Its trace has told which of the example's tensors backward keeps, and what else."""
        own = zip(tensors(example), given, strict=True)
        self.kept = frozenset(storages) | {key_of(t) for t, is_kept in own if is_kept}

    def learn_casts(self, dtype: torch.dtype) -> None:
        """Its trace has told what the model casts its weights to."""
        self.casts = dtype

    def learn_table(self, example: Any, half: torch.dtype | None) -> None:
        """Its table is known: it keeps what it is given, of images autocast's copies."""
        self.learn_kept(
            example, [not (half and t.is_floating_point()) for t in tensors(example)], ()
        )


def signature_of(module: Any) -> tuple[Any, ...] | None:
    """What tells a module's parameters, settings and compiled parts from others'.

    None: it has no parameters, or hands its call on to an engine of DeepSpeed's in it.
    """
    inner = (getattr(m, "raysim_wrapping", None) for m in module.modules() if m is not module)
    if any(wrapping is not None and wrapping.engine == "deepspeed" for wrapping in inner):
        return None
    parameters = tuple(
        (name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in module.named_parameters()
    )
    if not parameters:
        return None
    settings = tuple(tuple(_settings(m)) for m in module.modules())
    for m in module.modules():
        if getattr(m, "sparse", False) is True and isinstance(m, nn.Embedding | nn.EmbeddingBag):
            setattr(m.weight, SPARSE, True)
    return type(module).__qualname__, hash(parameters), hash(settings), marks(module)


def _settings(module: Any) -> Iterator[tuple[str, Any]]:
    """Numbers that its author gave it, as a stride is; not what says which of many it is."""
    for name, value in vars(module).items():
        parts = value if isinstance(value, tuple) else (value,)
        if not name.endswith(_WHICH) and all(isinstance(v, int | float | str) for v in parts):
            yield name, value


def half_here() -> Any:
    """What autocast casts to on a GPU; False: nothing."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")


def call_key(
    signature: Any, args: Any, kwargs: Mapping[str, Any], half: Any, *, learns: bool,
    goes_on: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """What makes two forwards alike; ``goes_on``: a token's after others, however many."""
    with _C.DisableTorchFunction():
        given = list(tensors((args, kwargs)))
        if goes_on and not learns and is_token(given):
            given = [t for t in given if not is_context(t)]
        shapes = tuple((t.shape, t.dtype) for t in given)
        plain = tuple(v if isinstance(v, _PLAIN) else None for v in (*args, *kwargs.values()))
        return signature, shapes, tuple(kwargs), half, learns, plain


def is_token(given: Sequence[torch.Tensor]) -> bool:
    """Whether inputs are of one token of each sample."""
    return bool(given) and given[0].dim() == 2 and given[0].shape[1] == 1


def is_context(tensor: torch.Tensor) -> bool:
    """Whether it is a mask over the tokens before, which becomes longer with each."""
    return tensor.dim() > 1 and tensor.shape[-1] != 1 and not tensor.is_floating_point()


def example_of(module: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What a module is given, as the tracer takes it: a sequence or, with names, a mapping.

    In dictionaries of its own: some models put their outputs into those (sentence-transformers).
    """
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t, (args, dict(kwargs)))
    if not kwargs:
        return args
    if not args:
        return kwargs
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def role_of(outputs: Any, given: Any) -> Role:
    """Of a forward that has run."""
    return Role(outputs=again(outputs), batch=samples_of(given), input_bytes=bytes_of(given))


def samples_of(given: Any) -> int:
    """The batch."""
    first = leading(given)
    return samples(given) if first is not None and first.shape[0] else 1


def is_part(out: torch.Tensor, args: Any) -> bool:
    """Whether a tensor is one of those given, or shares its memory, as whoever saves it asks."""
    storage = key_of(out)
    return any(t.is_meta and key_of(t) == storage for t in tensors(args))


def bytes_of(given: Any) -> int:
    """Of all its tensors."""
    return sum(t.nbytes for t in tensors(given))


class _Link(torch.autograd.Function):
    """A node of autograd's graph in the place of a module's own."""

    @staticmethod
    def forward(ctx: Any, like: Sequence[torch.Tensor], *given: torch.Tensor) -> Any:
        """Tensors like those of before."""
        ctx.given = given  # not saved: what is changed in place later may be
        return tuple(torch.empty(t.shape, dtype=t.dtype, device=META) for t in like)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gradients of everything given, of which others may be asked for."""
        if torch.is_grad_enabled():
            return None, *_Link.apply(ctx.given, *ctx.given, *grads)  # type: ignore[no-untyped-call]
        return None, *(torch.empty(t.shape, dtype=t.dtype, device=META) for t in ctx.given)


def linked(outputs: Any, given: Sequence[torch.Tensor]) -> Any:
    """Outputs like those of before; of what required a gradient, the graph leads to ``given``."""
    with _C.DisableTorchFunction():
        like = [t for t in tensors(outputs) if t.requires_grad]
        made = iter(_Link.apply(like, *given) if like else ())  # type: ignore[no-untyped-call]

        def one(t: torch.Tensor) -> Any:
            asks = t.requires_grad
            return next(made) if asks else torch.empty(t.shape, dtype=t.dtype, device=META)

        return tree_map_only(torch.Tensor, one, outputs)


def again(outputs: Any, *, grad: bool = True) -> Any:
    """Outputs like those of before, of a graph that is not there."""

    def like(t: torch.Tensor) -> torch.Tensor:
        made = spread.like(t)
        if grad and t.requires_grad:
            return made.requires_grad_().clone()  # no leaf, which could not be changed in place
        return made

    with _C.DisableTorchFunction():
        if isinstance(outputs, torch.Tensor):
            return like(outputs)
        return tree_map_only(torch.Tensor, like, outputs)


def shapes_of(values: Any) -> tuple[Any, ...]:
    """What of a call decides on its result's shape.

    Raises
    ------
    TypeError
        A tensor has values, or something cannot be told from its like.
    """
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                raise TypeError
            spread = () if type(value) in PLAIN else (type(value),)
            found.append((value.shape, value.dtype, *spread))
        elif isinstance(value, tuple | list):
            found.append(shapes_of(value))
        elif isinstance(value, float):
            found.append(float)
        else:
            found.append(value)
    return tuple(found)


def key_of_function(func: Any, args: Any, kwargs: Any) -> Any:
    """What tells a call from others that do something else; None: values may."""
    try:
        key = func, shapes_of(args), shapes_of(kwargs.items())
        hash(key)
    except TypeError:
        return None
    return key
