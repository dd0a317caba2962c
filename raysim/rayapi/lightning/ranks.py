"""What Lightning keeps of its process, and the processes that it starts.

Real counterparts: ``lightning_utilities/core/rank_zero.py`` (0.15), whose ``rank_zero_only`` has
the process's rank as an attribute; ``strategies/launchers/subprocess_script.py`` of lightning 2.4
to 2.6: under plain ``python``, rank 0 runs the script again for each other GPU of its node.

Of several nodes each has its own first process, which the user starts; here one command stands for
all of them, which meet at the first if nobody says where.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from raysim.rayapi.launch.commands import TORCH_PORT
from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.ids import node_ip

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_RANKED = ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints")
"""Modules whose ``rank_zero_only`` knows the rank."""
_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Where ``_get_rank`` of ``fabric/utilities/rank_zero.py`` looks, in its order."""


class OwnRank:
    """Of one worker: what ``rank_zero_only.rank`` is while it runs."""

    __slots__ = ("_mine", "_outside")

    def __init__(self) -> None:
        self._mine: dict[str, int] = {}
        self._outside: dict[str, int] = {}

    def enter(self) -> None:
        """A slice of its process begins."""
        for name in _RANKED:
            module = sys.modules.get(name)
            if module is not None:
                self._outside[name] = getattr(module.rank_zero_only, "rank", 0)
                module.rank_zero_only.rank = self._mine.get(name, _said_outside())

    def leave(self) -> None:
        """It has ended, or waits."""
        for name in _RANKED:
            module = sys.modules.get(name)
            if module is not None:
                self._mine[name] = getattr(module.rank_zero_only, "rank", 0)
                module.rank_zero_only.rank = self._outside.get(name, 0)


def _said_outside() -> int:
    """Before a Trainer has set it."""
    return int(next((os.environ[name] for name in _VARIABLES if name in os.environ), 0))


# ---- processes -----------------------------------------------------------------------------------


class _Started:
    """What ``subprocess.Popen`` gives the launcher; the group looks after ranks."""

    pid = 0

    def __init__(self, _command: Any, env: dict[str, str], **_more: Any) -> None:
        self.environ = env

    def send_signal(self, _number: int) -> None:
        """The first to fail ends all."""


def install(r: Replaced, module: ModuleType) -> None:
    """Of both ``strategies.launchers.subprocess_script``."""
    real: Any = module.subprocess

    def start(*args: Any, **kwargs: Any) -> Any:
        return (real.Popen if worker_here() is None else _Started)(*args, **kwargs)

    r.set(module, "subprocess", lambda _: SimpleNamespace(Popen=start))
    r.around(module._SubprocessScriptLauncher, "_call_children_scripts", _others, worker_here)  # noqa: SLF001
    r.call(module, "_launch_process_observer", lambda *_: None, worker_here)


def _others(real: Any, worker: Any, launcher: Any) -> None:
    """The ranks beside the one that calls: environments are the launcher's."""
    if worker.run.start_others is None:
        raise NotEmulatedError(
            "processes that Lightning starts in a training worker",
            "ray.train.lightning.RayLightningEnvironment(), or raysim run python SCRIPT",
        )
    if launcher.num_nodes > 1:
        os.environ.setdefault("MASTER_ADDR", node_ip(next(iter(worker.context.gang.nodes))))
    real(launcher)
    here = [dict(os.environ), *(each.environ for each in launcher.procs)]
    nodes = [
        [{**each, "NODE_RANK": str(node), "LOCAL_RANK": str(i)} for i, each in enumerate(here)]
        for node in range(launcher.num_nodes)
    ]
    worker.run.start_others(worker, nodes)


def install_port(r: Replaced, module: ModuleType) -> None:
    """Of ``plugins.environments.lightning``: a free port, as torchrun's is."""
    r.call(
        module, "find_free_network_port",
        lambda _: int(os.environ.get("STANDALONE_PORT", TORCH_PORT)), worker_here,
    )  # fmt: skip


def install_signals(r: Replaced, module: ModuleType) -> None:
    """Of ``trainer.connectors.signal_connector``: the interpreter that all share has its own."""
    r.around(module._SignalConnector, "register_signal_handlers", lambda *_: None, worker_here)  # noqa: SLF001
