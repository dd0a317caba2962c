"""A layer table as ``torch.autocast`` to 16 bits runs it, weights in fp32.

Products get 16-bit copies of fp32 inputs, one for each product, for autocast's cache has weights
only; they keep the copy and return 16 bits. What is on autocast's fp32 list (layer norm, powers)
gets fp32 copies instead. All else takes the wider type of what it reads, so that a residual stream
that begins with an embedding stays fp32. ``autocasted`` rewrites accordingly what is kept, and what
kernels move: casts before and behind, and twice the bytes of what works in fp32.

Source: torch's ``autocast_mode.h`` (lists of CUDA). ``cross_entropy`` names the type of its
log-softmax, which therefore stays in 16 bits; the likelihood is on the list and keeps an fp32 copy.

Not modelled: what is alive within a layer's forward only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from raysim.models.table import Body, Model, Operator, Saved

CAST_MOVED = 3.0
"""16-bit elements per element cast between 16 bits and fp32."""
JOINED_MOVED = 3.0
"""The same of two gradients added: what fp32 adds to it."""


def autocasted(model: Model) -> Model:
    """The model with what it keeps under autocast; layers that share a body still do."""
    return model.with_bodies(_body)


def _body(body: Body) -> Body:
    """One layer's; what comes from outside is fp32."""
    narrow: set[str] = set()
    """Tensors of 16 bits."""
    modules = []
    for module in body.modules:
        operators: list[Operator] = []
        for o in module.operators:
            operators += [*_casts(o, narrow), _operator(o, narrow)]
            if _returns_narrow(o, narrow):
                narrow.add(o.result)
        modules.append(replace(module, operators=tuple(operators)))
    return replace(body, modules=tuple(modules))


def _casts(o: Operator, narrow: set[str]) -> Iterator[Operator]:
    """The copies of inputs made before an operator, whose gradients are cast back."""
    for place, s in enumerate(o.reads):
        if o.autocast == ("fp32" if s.name in narrow else "half"):
            yield Operator(
                name=f"{o.name}.cast{place}", kind="elementwise", moved=CAST_MOVED * s.numel,
                moved_backward=CAST_MOVED * s.numel, indexed=s.numel, indexed_backward=s.numel,
                output=s.numel, split="heads" if s.sharded else "none", kernels_backward=1,
            )  # fmt: skip


def _promoted(o: Operator, narrow: set[str]) -> bool:
    """Whether an operator that autocast leaves alone works in 16 bits."""
    return bool(o.reads) and all(s.name in narrow for s in o.reads)


def _returns_narrow(o: Operator, narrow: set[str]) -> bool:
    return o.autocast == "half" or (o.autocast == "promotes" and _promoted(o, narrow))


def _operator(o: Operator, narrow: set[str]) -> Operator:
    if not o.reads:
        return _widened(o, mixed=0.0, narrow=narrow) if o.kind == "embedding" else o
    o = _moving(o, narrow)
    if o.autocast == "likelihood":
        copy = Saved(name=f"{o.name}.fp32", numel=o.reads[0].numel, dtype="fp32",
                     sharded=o.reads[0].sharded)  # fmt: skip
        return replace(o, saves=(*o.saves, copy), scratch_backward=(copy,))
    whole: dict[str, list[float]] = defaultdict(list)
    for s in o.reads:
        whole[s.name].append(s.numel)
    saves = []
    for place, s in enumerate(o.saves):
        if whole[s.name]:
            copy = replace(s, name=f"{o.name}.cast{place}", numel=whole[s.name].pop(0))
            saves.append(_input(o, s, copy, is_narrow=s.name in narrow))
        else:
            saves.append(_internal(o, s, narrow))
    return replace(o, saves=tuple(saves))


def _moving(o: Operator, narrow: set[str]) -> Operator:
    """With what its kernels move: ``moved`` counts 16-bit elements."""
    slim = sum(s.numel for s in o.reads if s.name in narrow)
    wide = sum(s.numel for s in o.reads if s.name not in narrow)
    joined = [s for s in o.reads if s.name in o.joined]
    if o.autocast == "half":
        return _adding(o, JOINED_MOVED * sum(s.numel for s in joined if s.name not in narrow))
    if o.autocast == "likelihood":
        n = o.reads[0].numel
        # Cast before it; backward its gradient in fp32, cast back.
        o = replace(o, moved=o.moved + CAST_MOVED * n, kernels=o.kernels + 1,
                    indexed=o.indexed + n, indexed_backward=o.indexed_backward + n)  # fmt: skip
        return _adding(o, (CAST_MOVED + 1.0) * n, kernels=1)
    if o.autocast == "fp32" or (o.autocast == "promotes" and not _promoted(o, narrow)):
        o = _widened(o, mixed=slim if wide and o.autocast == "promotes" else 0.0, narrow=narrow)
        return _adding(o, -JOINED_MOVED * sum(s.numel for s in joined if s.name in narrow))
    return o


def _adding(o: Operator, moved: float, *, kernels: int = 0) -> Operator:
    """With more in backward."""
    if not moved:
        return o
    return replace(
        o, moved_backward=o.backward_moved + moved, kernels_backward=o.backward_kernels + kernels
    )


def _widened(o: Operator, *, mixed: float, narrow: set[str]) -> Operator:
    """In fp32, but for inputs of 16 bits that a kernel casts as it reads them.

    Backward reads such of them as are kept, and casts their gradients.
    """
    kept = {s.name for s in o.saves} & narrow if mixed else set()
    again = sum(s.numel for s in o.reads if s.name in kept)
    o = replace(
        o, moved=2.0 * o.moved - mixed, moved_backward=2.0 * o.backward_moved - again,
        indexed=o.indexed + mixed, indexed_backward=o.indexed_backward + mixed,
    )  # fmt: skip
    return _adding(o, CAST_MOVED * mixed, kernels=1)


def _input(o: Operator, s: Saved, copy: Saved, *, is_narrow: bool) -> Saved:
    """An input that is kept: itself, or the copy that autocast made of it."""
    if s.dtype != "compute":
        return s
    if is_narrow:
        return replace(copy, dtype="fp32") if o.autocast == "fp32" else s
    return copy if o.autocast == "half" else replace(s, dtype="fp32")


def _internal(o: Operator, s: Saved, narrow: set[str]) -> Saved:
    """What an operator keeps besides."""
    if s.source:
        if s.source in narrow:
            return s
        return replace(s, name=s.source if s.dtype == "fp32" else s.name, dtype="fp32")
    wide = o.autocast == "fp32" or (o.autocast == "promotes" and not _promoted(o, narrow))
    return replace(s, dtype="fp32") if wide and s.dtype == "compute" else s
