"""The module ``ray.train.collective``: small values between the workers of a run.

Real counterpart: ``ray/train/collective/collectives.py`` (2.60). The controller's node has the
actor where ranks meet.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.library_code import play
from raysim.rayapi.train.worker import Worker, here
from raysim.raycore.tasks import TaskError
from raysim.raylibs.train.gang import PreemptionInfo


def _met(worker: Worker, data: Any) -> Any:
    """What rank 0 has brought, once all ranks are there."""
    context = worker.context
    found = play(
        lambda _: context.sync.ask(
            "broadcast_from_rank_zero", context.rank, context.world_size, data
        )
    )
    if isinstance(found, TaskError):
        raise_error(exception_of(found, ""))
    return found


@program_call
def broadcast_from_rank_zero(data: Any) -> Any:
    """``ray.train.collective.broadcast_from_rank_zero``: what rank 0 gives, to all."""
    return _met(here("broadcast_from_rank_zero"), data)


@program_call
def barrier() -> None:
    """``ray.train.collective.barrier``: until all are there."""
    _met(here("barrier"), None)


@program_call
def get_preemption_info() -> PreemptionInfo | None:
    """``ray.train.get_preemption_info``: what rank 0 knows, for all."""
    worker = here("get_preemption_info")
    known: PreemptionInfo | None = _met(worker, worker.context.gang.noticed)
    return known
