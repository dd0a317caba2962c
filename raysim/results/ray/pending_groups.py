"""Why placement groups wait: how many of a kind, what each needs, and what is free.

Real counterpart: none in one place; ``ray status`` lists their demands beside the usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from raysim.raycore.resources import UNIT
from raysim.raystate.moment import Moment
from raysim.results.ray.shortage import plural
from raysim.results.ray.status import GroupDemand, group_demands


def pending_groups(now: Moment) -> tuple[int, list[str]]:
    """How many wait at this moment, and a sentence for each kind of them."""
    demands = sorted(group_demands(now), key=repr)
    kinds = [(kind, len(list(alike))) for kind, alike in groupby(demands)]
    return len(demands), [_sentence(now, kind, count) for kind, count in kinds]


def _sentence(now: Moment, kind: GroupDemand, count: int) -> str:
    needs: dict[str, float] = {}
    for shape, bundles in kind.bundles:
        for name, quantity in shape.items():
            needs[name] = needs.get(name, 0.0) + bundles * quantity
    each = " and ".join(f"{quantity:g} {name}" for name, quantity in needs.items())
    return (
        f"{plural(count, 'placement group')} ({kind.strategy}) of {each} each "
        f"{'waits' if count == 1 else 'wait'} for room: {', '.join(_free(now, needs))} are free."
    )


def _free(now: Moment, names: Iterable[str]) -> Iterator[str]:
    nodes = [node for node in now.nodes.values() if node.alive]
    for name in names:
        free = sum(node.available.get(name, 0) for node in nodes)
        total = sum(node.total.get(name, 0) for node in nodes)
        yield f"{free / UNIT:g} of {total / UNIT:g} {name}"
