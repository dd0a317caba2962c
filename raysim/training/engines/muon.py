"""What Muon needs besides its step: whole matrices, of which ZeRO-3's ranks hold slices.

Source: ``_apply_muon_to_accumulated_grads`` and ``_muon_update_sub_group`` of ``zero/stage3.py``,
DeepSpeed 0.19: gradients and momenta of as many matrices as ``reduce_bucket_size`` holds are
gathered; each rank orthogonalizes every N-th; updates and momenta are gathered round by round of N
matrices. ZeRO-1/2 have whole gradients after their all-reduce and gather nothing.
"""

from __future__ import annotations

from raysim.training.engines.context import EngineContext
from raysim.training.program import Call
from raysim.training.states.optimizer import on_muon
from raysim.training.states.zero import pack, shard_numel


def gather_matrices(c: EngineContext) -> None:
    """All-gathers of one optimizer step on slices; nothing for other optimizers."""
    if not c.on_muon or c.ranks == 1:
        return
    by_name = dict(c.plan.model.parameters())
    matrices = [g for g in c.built if on_muon(g.name, by_name[g.name])]
    for chunk in pack(matrices, c.plan.zero.reduce_bucket_size):
        for what in ("gradients", "momenta"):
            _gather(c, what, sum(shard_numel(g.numel, c.ranks) for g in chunk))
        for first in range(0, len(chunk), c.ranks):
            together = chunk[first : first + c.ranks]
            most = max(g.numel for g in together)
            for what in ("updates", "momenta"):
                _gather(c, what, most)


def _gather(c: EngineContext, what: str, own: int) -> None:
    """So many elements of every rank, before the compute stream goes on."""
    b = c.builder
    call = Call("all_gather", "dp", own * c.ranks * c.comm_bytes)
    work = b.collective(f"all-gather {what}", call, waits=b.last_on("compute"))
    b.compute(f"{what} ready", "collective", 0.0, launches=0, waits=(work,))
