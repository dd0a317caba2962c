"""``apex``: fused optimizers by their names, norms as torch's own, which are fused too.

Real counterpart: NVIDIA's apex (``apex/optimizers``, ``normalization``, ``parallel``). ``apex.amp``
is not there: scripts that try it use torch's own autocast then.
"""

from __future__ import annotations

from typing import Any

import torch

from raysim.rayapi.deepspeed.ops import FusedAdam, FusedLamb

__version__ = "0.1"

FusedLAMB = FusedLamb
FusedLayerNorm = MixedFusedLayerNorm = torch.nn.LayerNorm
FusedRMSNorm = MixedFusedRMSNorm = torch.nn.RMSNorm
DistributedDataParallel = torch.nn.parallel.DistributedDataParallel
convert_syncbn_model = torch.nn.SyncBatchNorm.convert_sync_batchnorm
SyncBatchNorm = torch.nn.SyncBatchNorm


class FusedSGD(torch.optim.SGD):
    """``apex.optimizers.FusedSGD``: torch's, fused."""

    def __init__(self, params: Any, lr: float = 1e-3, **more: Any) -> None:
        for name in ("wd_after_momentum", "materialize_master_grads", "set_grad_none"):
            more.pop(name, None)
        super().__init__(params, lr, fused=True, **more)


class parallel:  # noqa: N801  (a module of theirs)
    """``apex.parallel``."""

    DistributedDataParallel = DistributedDataParallel
    convert_syncbn_model = staticmethod(convert_syncbn_model)
    SyncBatchNorm = SyncBatchNorm


class optimizers:  # noqa: N801  (a module of theirs)
    """``apex.optimizers``."""

    FusedAdam, FusedLAMB, FusedSGD = FusedAdam, FusedLAMB, FusedSGD


class normalization:  # noqa: N801  (a module of theirs)
    """``apex.normalization``."""

    FusedLayerNorm, FusedRMSNorm = FusedLayerNorm, FusedRMSNorm
