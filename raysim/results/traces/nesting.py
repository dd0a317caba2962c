"""What encloses kernels on a GPU's stream: step > micro-batch > recomputation > module.

Made of what spans already say: ``step`` and ``micro_batch`` among their arguments, their category,
and the dotted path of the module they are named after. Neighbours that share it share the slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysim.kernel.record import Span

PASSES = {"forward": "forward", "backward": "backward", "recompute": "backward"}
"""Category of a kernel to the pass it belongs to."""
ENCLOSING = ("step", "pass", "recompute", "module")
"""Categories of the slices made here, from the outside in; recomputation has its kernels' own."""


Level = tuple[str, str]
"""Name and category of a slice that encloses others; those around it tell equal ones apart."""


def enclosed(spans: Sequence[Span]) -> list[Span]:
    """Spans of one lane, with what encloses them, in drawing order.

    Lanes without passes, or whose spans nest already, stay as they are.
    """
    if not any(span.category in PASSES for span in spans) or _nested(spans):
        return list(spans)
    parents = {module for name in {span.name for span in spans} for module in modules(name)}
    found: list[Span] = []
    begun: list[tuple[int, Level]] = []
    """Places in ``found`` of slices still open, whose ends are not known yet."""

    def close(depth: int, end_ns: int) -> None:
        while len(begun) > depth:
            place, _ = begun.pop()
            found[place] = found[place]._replace(end_ns=end_ns)

    end_ns = 0
    for span in spans:
        path = _levels(span, parents)
        depth = 0
        while depth < min(len(path), len(begun)) and path[depth] == begun[depth][1]:
            depth += 1
        close(depth, end_ns)
        if depth < len(path):
            said = {k: v for k, v in (span.args or {}).items() if k in {"step", "micro_batch"}}
            for level in path[depth:]:
                begun.append((len(found), level))
                found.append(span._replace(name=level[0], category=level[1], args=said))
        found.append(span)
        end_ns = span.end_ns
    close(0, end_ns)
    return found


def _nested(spans: Sequence[Span]) -> bool:
    last_ns = 0
    for span in spans:
        if span.start_ns < last_ns:
            return True
        last_ns = max(last_ns, span.end_ns)
    return False


def _levels(span: Span, parents: set[str]) -> list[Level]:
    """From the step inwards.

    What a module with parts does itself, a residual sum for instance, lies in its own slice.
    """
    args = span.args or {}
    step = args.get("step")
    if step is None:
        return []
    found = [(f"step {step}", "step")]
    kind, batch = PASSES.get(span.category), args.get("micro_batch")
    if kind is None or batch is None:
        return found
    found.append((f"micro-batch {batch} {kind}", "pass"))
    if span.category == "recompute":
        found.append(("recompute", "recompute"))
    found += [(path, "module") for path in modules(span.name)]
    if span.name in parents:
        found.append((span.name, "module"))
    return found


@lru_cache(maxsize=1 << 14)
def modules(name: str) -> tuple[str, ...]:
    """Modules around ``model.layers.0.mlp.up_proj``: ``model``, ``model.layers.0``, ``...mlp``.

    A list of modules has no forward of its own, so ``model.layers`` is none of them.
    """
    parts = name.split(".")
    if " " in name:
        return ()
    return tuple(".".join(parts[:n]) for n in range(1, len(parts)) if not parts[n].isdecimal())
