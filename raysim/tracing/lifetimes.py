"""How long what a loss makes is in memory: as Python counts references, and autograd's nodes do.

Forward: from the operator that makes a storage to the last one that reads it, or until backward
where a node has saved it. Backward: gradients until the last node that was given them, and what
nodes saved until they have run.

A variable of a module's forward keeps its tensor until it is bound to another, deleted, or the
forward returns: of what a model makes, the storages' owners are counted (``Ends``).

Not modelled: variables of a loss that has read them for the last time and goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from raysim.tracing.operators import Call

_C: Any = torch._C  # noqa: SLF001  (nothing else counts a storage's owners)


class Ends:
    """Which operator was the last one beside which a storage was there."""

    def __init__(self) -> None:
        self.found: dict[int, Call] = {}
        """By identity."""
        self._open: set[int] = set()

    def look(self, latest: Call | None) -> None:
        """Whose last owner has gone since the ``latest`` operator."""
        if latest is not None and self._open:
            gone = {key for key in self._open if _C._storage_Use_Count(key) < 2}  # noqa: SLF001
            self._open -= gone
            self.found |= dict.fromkeys(gone, latest)

    def begin(self, keys: Iterable[int]) -> None:
        """These are there, which the trace owns too."""
        self._open.update(keys)

    def keep(self, key: int) -> None:
        """Backward needs it."""
        self._open.discard(key)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of a module's forward between two of others: what it makes and does not keep itself."""

    left: tuple[tuple[int, int, bool], ...]
    """Bytes of each storage that is there when it is over, how many modules later somebody keeps
    it, or the last owner goes, and whether it is ``late``."""
    late: Set[int]
    """Storages that are left or kept and made after the fullest moment of forward."""
    beside: Mapping[int, tuple[int, ...]]
    """By an operator's identity, bytes of each other storage that is there beside it, and of each
    that is late; less what is kept or left, not late, and not made yet."""
    freed: Mapping[int, int]
    """By an operator's identity, what is kept for later ones, whose backward has run before."""
    fullest: Call | None
    """The operator beside whose backward are most gradients and kept storages; None: none was
    heard, or not of all."""

    waits: int
    """Bytes of gradients that wait beside backward of what is no loss."""

    def most(self, calls: Iterable[Call]) -> tuple[int, ...]:
        """Of the fullest moment of some operators' forward."""
        return max((self.beside[id(call)] for call in calls), key=sum)

    def most_back(self, calls: Iterable[Call]) -> int:
        """Bytes of all gradients that are there when some operators' backward has most of them.

        Less what the stretch has kept for others, which is free again by then.
        """
        heard = calls if self.fullest is not None else ()
        return max((size - self.freed[id(c)] for c in heard for size in c.there), default=0)

    def waiting(self, call: Call) -> tuple[int, ...]:
        """Bytes of each gradient that waits beside an operator's backward, less the same."""
        return _waiting(call, self.fullest, self.freed)


class Lifetimes:
    """Of all that a loss's operators make, and of a model's outputs that nobody holds."""

    def __init__(
        self,
        calls: Iterable[Call],
        outputs: Mapping[int, int],
        ends: Ends,
        made: Mapping[int, Call],
    ) -> None:
        """``calls`` in the order in which they ran; ``outputs``: bytes, by identity.

        ``made``: by which operator, by identity.
        """
        self._made = made
        self._ran = ran = list(calls)
        self._places = {id(call): place for place, call in enumerate(ran)}
        self._last = {key: place for place, call in enumerate(ran) for key in call.reads}
        for key, call in ends.found.items():
            if call.kind != "loss" and not call.compiled and id(call) in self._places:
                self._last[key] = max(self._last.get(key, -1), self._places[id(call)])
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

    def stretch(self, calls: Sequence[Call], modules: Mapping[int, int]) -> Stretch:
        """Of a module's ``calls``; ``modules``: the place of each call's module among all."""
        first, ends = self._places[id(calls[0])], self._places[id(calls[-1])]
        begun = {place: list[tuple[int, int, int]]() for place in range(first, ends + 1)}
        stays, ahead, left = set[int](), set[int](), list[tuple[int, int, int]]()
        for key, begin, size in self._begun(calls, first):
            last = self._keeper.get(key, max(begin, self._last.get(key, begin)))
            if key in self._keeper or last > ends:
                stays.add(key)
            elif self._ran[begin].compiled:
                continue  # whose buffers the compiler has planned
            begun[begin].append((key, size, last))
            if self._ran[last].kind == "loss" and last <= ends:
                ahead.add(key)
            if last > ends:
                after = modules[id(self._ran[last])] - modules[id(calls[-1])]
                left.append((key, size, after))
        there = list(_there(begun, stays))
        levels = [sum(here.values()) for here in there]
        early = (set(there[levels.index(max(levels))]) | ahead) & stays
        total = sum(size for made in begun.values() for key, size, _ in made if key in early)
        beside: dict[int, tuple[int, ...]] = {}
        for place, here in zip(begun, there, strict=True):
            unmade = total - sum(size for key, size in here.items() if key in early)
            others = (size for key, size in here.items() if key not in early)
            beside[id(self._ran[place])] = tuple(_less(others, unmade))
        freed = self._freed(calls)
        fullest = _fullest(calls, freed)
        waits = (sum(_waiting(c, fullest, freed)) for c in calls if c.kind != "loss")
        return Stretch(
            left=tuple((size, after, key not in early) for key, size, after in left if after > 0),
            late=stays - early, beside=beside, freed=freed, fullest=fullest,
            waits=max(waits, default=0),
        )  # fmt: skip

    def _freed(self, calls: Sequence[Call]) -> dict[int, int]:
        """Backward goes the other way: what none of the ones before keeps is free again."""
        sizes = {k.key: k.size_bytes for c in calls for k in c.keeps if not k.returned}
        found, freed = dict[int, int](), 0
        for call in reversed(calls):
            found[id(call)] = freed
            mine, place = {k.key for k in call.keeps}, self._places[id(call)]
            freed += sum(sizes.pop(k, 0) for k in mine if self._keeper.get(k) == place)
        return found

    def _begun(self, calls: Sequence[Call], first: int) -> Iterator[tuple[int, int, int]]:
        """Storages that these make, each with the place where, and its bytes.

        What was made of nothing may be known to grow with the batch only once it is written to.
        """
        found = {key: size for call in calls for key, size in call.results.items()}
        for key, size in found.items():
            place = self._places.get(id(self._made.get(key)), -1)
            if place >= first:
                yield key, place, size

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


def _there(
    begun: Mapping[int, Sequence[tuple[int, int, int]]], stays: Set[int]
) -> Iterator[dict[int, int]]:
    """At each place the storages that are there, with their bytes; some stay to the end.

    ``begun``: by place, what is made there: identity, bytes, its last place.
    """
    here: dict[int, tuple[int, int]] = {}
    for place, made in begun.items():
        here |= {key: (size, last) for key, size, last in made}
        yield {key: size for key, (size, _) in here.items()}
        here = {key: each for key, each in here.items() if key in stays or each[1] > place}


def _fullest(calls: Sequence[Call], freed: Mapping[int, int]) -> Call | None:
    """Beside whose backward most is there; of fused functions gradients are not heard."""
    back = [call for call in calls if call.kernels_backward or call.there]
    if not back or not all(call.there for call in back):
        return None
    return max(back, key=lambda call: max(call.there) - freed[id(call)])


def _waiting(call: Call, fullest: Call | None, freed: Mapping[int, int]) -> tuple[int, ...]:
    """Beside the fullest operator alone, if it is known."""
    waits = (call.waiting or {}).values()
    if fullest is None:
        return tuple(waits)
    return tuple(_less(waits, freed[id(call)])) if call is fullest else ()


def _less(sizes: Iterable[int], taken: int) -> Iterator[int]:
    """Sizes, largest first, without so many bytes of them."""
    for size in sorted(sizes, reverse=True):
        cut = min(size, taken)
        taken -= cut
        if size > cut:
            yield size - cut


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
