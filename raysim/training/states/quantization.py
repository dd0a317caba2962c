"""ZeRO++'s quantizers: groups with a scale each, bytes on the wire, and which shapes they take.

Sources: ``CUDAQuantizer`` in ``deepspeed/runtime/zero/partition_parameters.py`` and
``all_to_all_quant_reduce`` in ``runtime/comm/coalesced_collectives.py`` of 0.19.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from raysim.errors import ScenarioError

TARGET_GROUP = 8000
"""Elements that share a scale, at most."""
SCALE_BYTES = 4
LANES = 8
"""The kernel reads so many elements at once."""


class Hop(NamedTuple):
    """One all-to-all of quantized gradients with its scales."""

    payload_bytes: int
    scale_bytes: int


@lru_cache(maxsize=4096)
def weight_groups(numel: int) -> int:
    """Groups that ``numel`` elements are quantized to int8 in: the fewest of up to 8,000 elements.

    Raises
    ------
    ScenarioError
        DeepSpeed asserts that groups can be of whole vectors of eight elements.
    """
    vectors, rest = divmod(numel, LANES)
    # As many groups as divide the vectors, at least numel / 8000: few vectors to a group.
    most = vectors // -(-numel // TARGET_GROUP)
    if rest or not most:
        raise ScenarioError(
            f"zero_quantized_weights: a shard has {numel:,} elements; DeepSpeed's quantizer needs "
            "a multiple of 8, and more than 8. Use fewer ranks or another shape"
        )
    per_group = next(k for k in range(most, 0, -1) if vectors % k == 0)
    return vectors // per_group


def gradient_hops(shape: tuple[int, ...], ranks: int, local: int) -> tuple[Hop, Hop] | None:
    """Within the node, then across nodes, in int4; None: DeepSpeed reduce-scatters it alone.

    ``local`` of the ``ranks`` are on one node.
    """
    numel = 1
    for side in shape:
        numel *= side
    if len(shape) == 1 or numel % (2 * ranks):
        return None
    groups = max(shape[0], shape[1], ranks)
    near = Hop(numel // 2, groups * SCALE_BYTES)
    return near, Hop(numel // 2 // local, groups // local * SCALE_BYTES)
