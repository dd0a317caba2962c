"""How long what a loss makes is in memory: as Python counts references, and autograd's nodes do.

Forward: from the operator that makes a storage to the last one that reads it, or until backward
where a node has saved it. Backward: gradients until the last node that was given them, and what
nodes saved until they have run.

Not modelled: variables of a function that has read them for the last time and goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from raysim.tracing.operators import Call


class Lifetimes:
    """Of all that a loss's operators make, and of a model's outputs that nobody holds."""

    def __init__(self, calls: Iterable[Call], outputs: Mapping[int, int]) -> None:
        """``calls`` in the order in which they ran; ``outputs``: bytes, by identity."""
        self._ran = ran = list(calls)
        self._places = {id(call): place for place, call in enumerate(ran)}
        self._last = {key: place for place, call in enumerate(ran) for key in call.reads}
        self._begin = dict.fromkeys(outputs, -1)
        self._sizes = dict(outputs)
        for place, call in enumerate(ran):
            for key, size in call.results.items() if call.kind == "loss" else ():
                self._begin.setdefault(key, place)
                self._sizes.setdefault(key, size)
        self._keeper: dict[int, int] = {}
        for place, call in enumerate(ran):
            for kept in call.keeps:
                self._keeper.setdefault(kept.key, place)

    def handed(self, calls: Sequence[Call], modules: Mapping[int, int]) -> tuple[int, int]:
        """Bytes that a run of calls makes and does not keep, and how many modules they live on.

        ``modules``: the place of each call's module. Of what is read within the run alone only the
        last call's counts; in place nothing is made.
        """
        own = {k.key for call in calls for k in call.keeps}
        ends, here = self._places[id(calls[-1])], modules[id(calls[-1])]
        made, inside, after = 0, 0, 0
        for call in calls:
            for key, size in call.results.items():
                if key in call.reads or key in own:
                    continue
                last = self._keeper.get(key, self._last.get(key, -1))
                if last > ends:
                    made += size
                    after = max(after, modules[id(self._ran[last])] - here)
                elif call is calls[-1]:
                    inside += size
        return made + inside, after

    def in_forward(self, calls: Sequence[Call]) -> int:
        """Most bytes that these hold beyond all that they keep for backward."""
        places = [self._places[id(call)] for call in calls]
        own = {key: size for call in calls for key, size in call.results.items()}
        keeps = {key: size for key, size in own.items() if key in self._keeper}
        most, kept = 0, 0
        for place, call in zip(places, calls, strict=True):
            kept += sum(keeps.pop(key, 0) for key in call.results)
            most = max(most, kept + sum(self._dying_at(place)))
        return max(0, most - kept)

    def _dying_at(self, place: int) -> Iterable[int]:
        """Of each storage that is there and that nothing keeps, its bytes."""
        for key, begin in self._begin.items():
            last = max(begin, self._last.get(key, begin))
            if key not in self._keeper and begin <= place <= last:
                yield self._sizes[key]


def in_backward(calls: Sequence[Call]) -> tuple[int, int]:
    """Bytes that a loss's backward has at its peak: what is there beside a gradient, and that.

    What forward kept for those that have run is free again, and taken off the first.
    """
    kept = [{k.key: k.size_bytes for k in c.keeps if not k.returned} for c in calls]
    left = Counter(key for sizes in kept for key in sizes)
    free, before, worst = 0, 0, (0, 0)
    for call, sizes in zip(reversed(calls), reversed(kept), strict=True):
        for beside, made in call.gradients:
            there = before if beside is None else beside
            worst = max(worst, (max(0, there - free), made), key=sum)
            before = made
        left.subtract(list(sizes))
        free += sum(size for key, size in sizes.items() if not left[key])
    return worst
