"""``context_parallel`` in training workers: ranks that share a sequence.

Real counterpart: ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, which
Accelerate's ``ParallelismConfig(cp_size=)`` enters too. Within it a script's buffers stay whole
here, and its model runs on whole sequences: how ranks divide them is the step's prediction.

Simplified: keys and values that attention waits for are gathered beside it, by either rotation, and
so return their gradients; each rank's part of the sequence has as much to do, as torch's balancing
makes it. Adding up in fp32 what attention gives part by part takes no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import experimental
from torch.distributed.tensor.experimental import _attention

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.plans import Wrapping
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced) -> None:
    """Where scripts import it from."""
    for module in (experimental, _attention):
        r.call(module, "context_parallel", _within)
    r.call(_attention, "context_parallel_unshard", _whole)


@contextmanager
def _within(steps: Steps, mesh: Any, **_buffers: Any) -> Iterator[None]:
    """From the first time on, steps are of sequences that the mesh's ranks share."""
    steps.worker.globals.setdefault(shared, {})["ranks"] = mesh.size()
    yield


def _whole(
    _steps: Steps, _mesh: Any, buffers: Sequence[torch.Tensor], *_more: Any, **_named: Any
) -> list[torch.Tensor]:  # fmt: skip
    """Which they are."""
    return list(buffers)


def shared(steps: Steps, wrapping: Wrapping) -> int:
    """Ranks that share each sequence of a model that no engine of DeepSpeed's trains."""
    if wrapping.engine == "deepspeed":
        return 1
    return int(steps.worker.globals.get(shared, {}).get("ranks", 1))
