"""What a rank's memory comes to at most, without emulating its allocator.

The caching allocator gives a freed block to a request of its size again, so it reserves about what
each size takes at its most, at whatever moments. A smaller request may have cut the block: then
another is asked for, as happens to logits.

Simplification: that this happens to the largest once, and what fragments add, was found on 15,000
random plans and not proved; a property test goes on with them. Most fragments are under schedules
other than 1F1B, where activations of several micro-batches come and go out of step: up to an eighth
was seen.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from raysim.hardware.specs import GpuSpec
from raysim.training.memory.peaks import outside_bytes
from raysim.training.program import Program
from raysim.units import MIB

FRAGMENTS_BYTES = 512 * MIB
"""Segments of 2 and 20 MiB that are not full, cuBLAS's workspace, pieces that serve nobody: 307 MiB
were seen."""
OUT_OF_STEP = 7 / 6
"""As many times that much under schedules other than 1F1B."""


def at_most(
    program: Program, gpu: GpuSpec, slack_frac: float | None = None, *, plain: bool = True
) -> int:
    """Of ``rank_memory``'s peak, with the allocator's slack where a profile gives it.

    ``plain``: under 1F1B.
    """
    under_way: dict[tuple[str, int], int] = defaultdict(int)
    most: dict[tuple[str, int], int] = defaultdict(int)
    held = fullest = largest_freed = 0
    for event in chain(program.initial, program.memory[program.set_up :]):
        size = event.delta_bytes
        held += size
        if size > 0:
            key = event.stream, size
            under_way[key] = now = under_way[key] + 1
            if now > most[key]:
                most[key] = now
            if held > fullest:
                fullest = held
        else:
            key = event.stream, -size
            if under_way[key]:
                under_way[key] -= 1
            if -size > largest_freed:
                largest_freed = -size
    each = max(fullest, sum(size * count for (_, size), count in most.items()))
    taken = each * (1 + (slack_frac or 0.0)) + largest_freed + FRAGMENTS_BYTES
    return round(taken if plain else taken * OUT_OF_STEP) + outside_bytes(program, gpu)
