"""Gradients of a script's own inputs that its functions come before a module: physics' equations.

Real counterpart: ``torch.autograd.grad(u, x, create_graph=True)`` where a module was given
``torch.cat([x, t], 1)``. A phase begins with what its modules are given, so that the gradient is
asked of that, and a part as large as ``x`` is taken of it.

Not modelled: the functions between, backward; the part may be another than ``x``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from raysim.tracing.operators import tensors

Entry = tuple[Any, Any, Any, Any, bool]
"""A function or a call of a module, its arguments, its result, whether it is compiled."""


def of_given(entries: Sequence[Entry], given: Sequence[torch.Tensor]) -> list[Entry]:
    """The same entries, gradients asked of what modules are ``given`` where inputs lead to that."""
    return [
        entry if sources is None else (part, (*entry[1], sources), *entry[2:])
        for entry, sources in ((entry, _sources(entry, given)) for entry in entries)
    ]


def _sources(entry: Entry, given: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """What each of a gradient's inputs leads to; None: it is no such gradient."""
    func, args, *_ = entry
    if func is not torch.autograd.grad or len(args) < 2:
        return None
    found = [next((t for t in given if _leads(x, t)), None) for x in tensors(args[1])]
    known = [t for t in found if t is not None]
    return known if len(known) == len(found) else None


def _leads(x: torch.Tensor, to: torch.Tensor) -> bool:
    return any(getattr(node, "variable", None) is x for node in graph(to))


def graph(loss: torch.Tensor) -> Iterator[Any]:
    """Autograd's nodes that a backward of the loss comes to."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [following for following, _ in node.next_functions]


def part(outputs: Any, inputs: Any, *more: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    """Of the gradient of each source, which come last."""
    *rest, sources = more
    made = torch.autograd.grad(outputs, sources, *rest, **named)
    like = tensors(inputs)
    return tuple(g.flatten()[: x.numel()].view_as(x) for g, x in zip(made, like, strict=True))
