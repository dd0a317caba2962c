"""What is changed of Lightning, under both of its names.

Real counterparts: the packages ``lightning`` (``lightning.pytorch``, ``lightning.fabric``) and
``pytorch_lightning`` (beside ``lightning_fabric``), 2.4 to 2.6, whose files are the same. All else
of them is their own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from raysim.rayapi.later import changed
from raysim.rayapi.lightning import metrics, parts, ranks, steps

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_BOTH = {
    "accelerators.cpu": parts.cpus,
    "strategies.fsdp": parts.fsdp,
    "strategies.launchers.multiprocessing": parts.spawning,
    "strategies.launchers.subprocess_script": ranks.install,
    "strategies.model_parallel": parts.two_dimensions,
}
_PYTORCH = _BOTH | {
    "callbacks.early_stopping": parts.early_stopping,
    "strategies.ddp": parts.ddp,
    "strategies.strategy": steps.install,
    "trainer.connectors.signal_connector": ranks.install_signals,
    "utilities.migration.utils": parts.old_files,
    "utilities.model_summary.model_summary_deepspeed": parts.zero_summary,
}
_FABRIC = _BOTH | {
    "fabric": parts.fabric,
    "plugins.environments.lightning": ranks.install_port,
    "plugins.io.torch_io": parts.files,
    "strategies.ddp": parts.fabric_ddp,
    "utilities.seed": parts.seeds,
    "wrappers": parts.fabric_module,
}
_CHANGES = {
    f"{package}.{name}": change
    for packages, changes in (
        (("lightning.pytorch", "pytorch_lightning"), _PYTORCH),
        (("lightning.fabric", "lightning_fabric"), _FABRIC),
    )
    for package in packages
    for name, change in changes.items()
} | {"torchmetrics.metric": metrics.install}


@contextmanager
def lightning_of_workers(r: Replaced) -> Iterator[None]:
    """Training workers find theirs from here on."""
    parts.install(r)
    with changed({name: partial(change, r) for name, change in _CHANGES.items()}):
        yield
