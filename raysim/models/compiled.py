"""A layer table as ``torch.compile`` runs it: what its partitioner keeps for backward.

Inductor's min-cut partitioner has backward repeat chains of elementwise operators, from what cannot
be had again for little: products, attention cores and what they read. Norms keep their input as it
is and a few numbers per row, activations what they read from a product, dropout its mask; copies
and intermediate results go. The loss keeps the 16-bit logits and two numbers per row in place of
an fp32 log-softmax. Seen by compiling transformers' Llama, Qwen3, GPT-2 and BERT. A product that
casts its operands to fp8 within the graph (torchao's) needs no input in 16 bits: backward makes it
and casts it again, unless a kernel that is not repeated made it (seen with ``torch._scaled_mm``).

While transformers is traced it cannot see that a causal mask is all there is to mask: sdpa gets
one, and keys and values repeated for every query head (``sdpa_attention_forward``).

Not modelled: that mask, which all layers share; autocast within; time, which ``perf`` knows.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.table import Body, Model, Operator, Saved

CHAINED = frozenset({"elementwise", "norm"})
"""Kinds of operators that backward repeats."""


def compiled(model: Model) -> Model:
    """The model with what it keeps when compiled; layers that share a body still do."""
    return model.with_bodies(_body)


def _body(body: Body) -> Body:
    operators = list(body.operators)
    chained = {o.result for o in operators if o.kind in CHAINED}
    kernels = [o for o in operators if o.kind not in CHAINED]
    stays = {s.name for o in kernels if o.fp8 is None for s in o.reads}
    stays -= {o.reads[0].name for o in operators if o.kind == "loss" and o.reads}
    stays |= {o.result for o in kernels}
    stays |= {s.name for o in operators if o.kind == "norm" for s in o.reads}
    modules = (
        replace(module, operators=tuple(_operator(o, stays, chained) for o in module.operators))
        for module in body.modules
    )
    return replace(body, modules=tuple(modules))


def _operator(o: Operator, stays: set[str], chained: set[str]) -> Operator:
    if not o.reads:
        return o
    if o.kind == "loss":
        return _loss(o)
    if o.attention is not None:
        return _core(o)
    if o.kind not in CHAINED:
        remade = o.fp8 is not None and o.reads[0].name in chained
        return replace(o, saves=o.saves[1:]) if remade else o
    inputs = [_uncopied(s) for s in o.saves]
    return replace(o, saves=tuple(s for s in inputs if s.name in stays or _is_small(o, s)))


def _uncopied(s: Saved) -> Saved:
    """An fp32 copy of an input is made again."""
    is_copy = s.source and s.dtype == "fp32"
    return replace(s, name=s.source, dtype="compute", source="") if is_copy else s


def _is_small(o: Operator, s: Saved) -> bool:
    """Numbers per row, and dropout's mask, which is drawn once."""
    return s.dtype == "bool" or (s.dtype == "fp32" and s.numel < o.output)


def _core(o: Operator) -> Operator:
    a = o.attention
    assert a is not None, f"{o.name} is no attention core"
    if a.implementation != "sdpa" or a.masked or not a.causal or a.heads == a.kv_heads:
        return o
    repeats = a.heads // a.kv_heads
    wide = [
        replace(s, name=f"{o.name}.repeated_{part}", numel=s.numel * repeats)
        for part, s in zip("kv", o.saves[1:3], strict=True)
    ]
    return replace(o, saves=(o.saves[0], *wide, *o.saves[3:]))


def _loss(o: Operator) -> Operator:
    """Of an unfused cross-entropy: gradients of logits in 16 bits, zeros first, then their own."""
    if not o.scratch_backward:
        return o
    logits, _, labels = o.saves
    rows = replace(logits, name=f"{o.name}.rows", numel=2 * labels.numel, dtype="fp32")
    held = replace(logits, returned=False)
    back = (replace(logits, name=f"{o.name}.zeros"), replace(logits, name=f"{o.name}.grad"))
    saves = (held, replace(rows, returned=False), labels)
    return replace(o, saves=saves, scratch=(), scratch_backward=back)
