"""What torch's non-reentrant activation checkpointing does not run again.

Recomputation stops when it has made the last tensor that backward needs
(``torch.utils.checkpoint.set_checkpoint_early_stop``, on by default since torch 2.1), and a product
keeps its input before it runs: so a block's last product, and what only adds to its output, run
once. Reentrant checkpoints (Megatron's, DeepSpeed's) run all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.models.table import Module


def spared_units(units: Sequence[Sequence[Module]]) -> int:
    """How many of a checkpoint's last units, given as their modules, recomputation never reaches.

    A unit that keeps its output or a mask (dropout, a norm's statistics) must run to make it.
    """
    spared = 0
    for unit in reversed(units):
        operators = [o for module in unit for o in module.operators]
        savers = [o for o in operators if o.saves]
        if not savers:
            spared += 1
            continue
        last = savers[0]
        keeps_input = last is operators[0] and last.gemm is not None and last.attention is None
        return spared + (keeps_input and len(savers) == 1)
    return spared
