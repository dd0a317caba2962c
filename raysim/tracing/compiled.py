"""What ``torch.compile`` makes of what a trace heard: other tensors are kept, kernels are fused.

The partitioner's two graphs (``joint``) say what forward keeps, the kernels that their operators
fuse to (``fusion``) what is moved. Both are told to the operators of the eager trace that they came
from; operators outside of compiled regions stay as they are, so that a region is taken out of the
graph of the whole module.

Not modelled: buffers that inductor pads, workspaces of products that it tunes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import torch
from torch import fx

from raysim.tracing.fusion import (
    Kernel,
    buffer_of,
    growing,
    kernels_of,
    reuse_kept,
    size_bytes,
    tensor_of,
)
from raysim.tracing.joint import ATTENTION, Halves, Place, place_of
from raysim.tracing.operators import Call, Kept
from raysim.tracing.recording import Listener
from raysim.tracing.walk import Visit

FUSED = frozenset({"norm", "elementwise", "loss", "other"})
"""Kinds of operators whose kernels the compiler writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    """What forward keeps."""

    maker: Place | None
    """The operator that made it; None: an input."""
    holder: Place
    """The operator in the compiled region that it is listed with."""
    size_bytes: int
    dtype: torch.dtype
    reused: bool
    """Its gradient is written over it."""


def stand_ins(visits: Sequence[Visit]) -> dict[int, int]:
    """Visits of layers that need not be compiled, each with the one that stands for it.

    Of a run of layers in which the eager trace heard the same, the first, the second and the last
    are compiled.
    """
    bodies = [_body(v) for v in visits]
    paths = Counter(v.path for v in visits)
    found: dict[int, int] = {}
    start = 0
    for i in range(1, len(visits) + 1):
        if i == len(visits) or bodies[i] != bodies[start] or paths[visits[i].path] > 1:
            found |= dict.fromkeys(range(start + 2, i - 1), start + 1)
            start = i
    return {i: source for i, source in found.items() if visits[i].path is not None}


def _body(visit: Visit) -> object:
    heard = tuple(
        (c.name, c.output, c.flops, c.moved, c.compiled, c.attention) for c in visit.calls
    )
    return visit.cls, heard, tuple(p.shape for p in visit.parameters)


def rewrite(
    halves: Halves,
    visits: Sequence[Visit],
    instead: Mapping[int, int],
    listener: Listener,
    returned: Set[int],
) -> None:
    """Tell the operators in compiled regions what they keep and move.

    ``returned`` are storages of what the module returns.
    """
    calls = [list(v.calls) for v in visits]
    graphs = _Graphs(halves, calls, returned)
    inside = [c for own in calls for c in own if c.compiled]
    for call in inside:
        _forget(call)
    written = Counter[int]()
    for visit, own in enumerate(calls):
        source = instead.get(visit, visit)
        for buffer in graphs.buffers[source]:
            _keep(calls, buffer, visit - source, listener.produced)
        for place, kernel in graphs.forward[source]:
            call = _carrier(own, place.call)
            call.kernels += kernel.launches
            call.moved += kernel.moved_bytes / listener.width
            call.indexed += kernel.indexed
            written[id(call)] = max(written[id(call)], *kernel.written, 0)
        for place, kernel in graphs.backward[source]:
            call = _carrier(own, place.call)
            call.kernels_backward += kernel.launches
            call.moved_backward += kernel.moved_bytes / listener.width
            call.indexed_backward += kernel.indexed
            call.gradients += [(None, size) for size in kernel.made]
            call.gradient = max(call.gradient or 0, *kernel.made, 0)
        for call in (own[i] for i in graphs.masked[source]):
            if call.attention is not None:
                call.attention = replace(call.attention, masked=True)
    for call in inside:
        if call.kind in FUSED:  # what is read elsewhere is kept, the rest was never there
            call.results = {}
            call.output = min(call.output, written[id(call)] / listener.width)


class _Graphs:
    """What the two graphs say, by the visit that it is of."""

    def __init__(self, halves: Halves, calls: Sequence[Sequence[Call]], returned: Set[int]) -> None:
        self._calls = calls
        self._aligned = {
            visit: _alignment([c.name for c in calls[visit]], names)
            for visit, names in halves.heard.items()
        }
        self.buffers: dict[int, list[_Buffer]] = defaultdict(list)
        self.forward: dict[int, list[tuple[Place, Kernel]]] = defaultdict(list)
        self.backward: dict[int, list[tuple[Place, Kernel]]] = defaultdict(list)
        own = growing(halves.forward, dict.fromkeys(halves.fixed, False))
        self._places: dict[fx.Node, Place] = {}
        for graph in (halves.forward, halves.backward):
            self._find_places(graph)
        self.masked: dict[int, list[int]] = defaultdict(list)
        """Attention cores that are given a mask once they are compiled (transformers does)."""
        for node in halves.forward.find_nodes(op="call_function", target=ATTENTION):
            place = self._places.get(node)
            if place is not None and self._is_compiled(place) and node.args[3] is not None:
                self.masked[place.visit].append(place.call)
        for kernel in kernels_of(halves.forward, own):
            self._file(self.forward, kernel)
        saved = {n.name: n in own for n in halves.forward.nodes}
        backward = kernels_of(halves.backward, growing(halves.backward, saved))
        theirs = {n.name for n in _kept(halves) if self._makes(buffer_of(n), returned)}
        self._find_buffers(halves, own, reuse_kept(halves.backward, backward, theirs))
        for kernel in backward:
            self._file(self.backward, kernel)

    def _find_places(self, graph: fx.Graph) -> None:
        """Of the eager trace; a node that came from none of its operators goes with its input."""
        order = {node: i for i, node in enumerate(graph.nodes)}
        for node in order:
            place = place_of(node)
            if place is not None and self._calls[place.visit]:
                aligned = self._aligned[place.visit][place.call]
                self._places[node] = Place(place.visit, aligned)
            elif node.op == "call_function":
                near = [n for n in node.all_input_nodes if n in self._places]
                if near:
                    self._places[node] = self._places[max(near, key=lambda n: order[n])]

    def _makes(self, node: fx.Node, storages: Set[int]) -> bool:
        place = self._places.get(node)
        return place is not None and not storages.isdisjoint(
            self._calls[place.visit][place.call].results
        )

    def _is_compiled(self, place: Place | None) -> bool:
        return place is not None and self._calls[place.visit][place.call].compiled

    def _find_buffers(self, halves: Halves, grown: set[fx.Node], reused: Set[str]) -> None:
        seen: set[fx.Node] = set()
        for node in _kept(halves):
            if node not in grown or tensor_of(node) is None:
                continue
            buffer = buffer_of(node)
            if buffer in seen:
                continue
            seen.add(buffer)
            maker = self._places.get(buffer)
            holder = maker if self._is_compiled(maker) else self._first_reader(buffer)
            value = tensor_of(buffer)
            if holder is not None and value is not None:
                size = max(size_bytes(buffer), size_bytes(node))
                self.buffers[holder.visit].append(
                    _Buffer(
                        maker=maker, holder=holder, size_bytes=size, dtype=value.dtype,
                        reused=node.name in reused,
                    )
                )  # fmt: skip

    def _first_reader(self, buffer: fx.Node) -> Place | None:
        """The first operator in a compiled region that reads what was made outside."""
        ahead, places, seen = [buffer], list[Place](), set[fx.Node]()
        while ahead and not places:
            readers = [u for u in dict.fromkeys(u for n in ahead for u in n.users) if u not in seen]
            seen.update(readers)  # a residual stream leads to most of a model, by very many ways
            found = (self._places.get(n) for n in readers)
            places = [p for p in found if p is not None and self._is_compiled(p)]
            ahead = readers
        return min(places, default=None)

    def _file(self, where: dict[int, list[tuple[Place, Kernel]]], kernel: Kernel) -> None:
        """With the last of its operators that is compiled."""
        places = [p for n in kernel.nodes if (p := self._places.get(n)) and self._is_compiled(p)]
        if places:
            where[max(places).visit].append((max(places), kernel))


def _kept(halves: Halves) -> list[fx.Node]:
    """What forward hands to backward."""
    listed = next(iter(halves.forward.find_nodes(op="output"))).args[0]
    assert isinstance(listed, tuple | list), "a graph returns a tuple"
    return [node for node in listed[halves.outputs :] if isinstance(node, fx.Node)]


def _alignment(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """Of each operator of theirs, which of ours it is; what we have not, goes with one before."""
    found = [-1] * len(theirs)
    for a, b, size in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        found[b : b + size] = range(a, a + size)
    latest = 0
    for i, place in enumerate(found):
        latest = found[i] = latest if place < 0 else place
    return found


def _forget(call: Call) -> None:
    """What eager torch keeps, and the kernels it runs; nothing is dispatched either."""
    call.keeps, call.there = [], []
    call.dispatches = 0
    if call.kind in FUSED:
        call.moved = call.indexed = call.moved_backward = call.indexed_backward = 0.0
        call.kernels = call.kernels_backward = 0
        call.gradients, call.gradient = [], 0


def _keep(
    calls: Sequence[Sequence[Call]], buffer: _Buffer, shift: int, produced: dict[int, Call]
) -> None:
    """Eager's own storage where it is that tensor: others may keep it too."""
    holder = calls[buffer.holder.visit + shift][buffer.holder.call]
    maker, key = None, 0
    if buffer.maker is not None:
        maker = calls[buffer.maker.visit + shift][buffer.maker.call]
        key = next(iter(maker.results), 0) if maker.made == buffer.size_bytes else 0
        maker.overwritten = bool(key) and buffer.reused
    if not key or any(k.key == key for k in holder.keeps):
        key = -1 - len(produced)
    produced.setdefault(key, maker or holder)
    holder.keeps.append(Kept(key, buffer.size_bytes, buffer.dtype))


def _carrier(calls: Sequence[Call], place: int) -> Call:
    """The operator bound by memory that is next to a place: a fused kernel is charged to it."""
    fused = [i for i, c in enumerate(calls) if c.compiled and c.kind in FUSED]
    return calls[min(fused, key=lambda i: (abs(i - place), i < place), default=place)]
