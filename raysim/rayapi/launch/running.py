"""Running an unmodified training script as its launcher would, on an emulated cluster.

Real counterpart: ``deepspeed train.py``, ``torchrun train.py`` or ``python train.py``, on the
cluster's first node with GPUs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.errors import ScenarioError
from raysim.perf.constants import TrainingConstants
from raysim.rayapi.launch.commands import Command
from raysim.rayapi.launch.ranks import Ranks
from raysim.rayapi.loader import emulated_world
from raysim.rayapi.session import LIMIT_S, Session
from raysim.rayapi.torch_programs import load_for

if TYPE_CHECKING:
    from raysim.raycore.cluster import Cluster


def run_launched(
    command: Command,
    *,
    cluster: Cluster,
    file: Path | None = None,
    limit_s: float = LIMIT_S,
    training: TrainingConstants | None = None,
    last: bool = False,
    steps: int | None = None,
) -> Session:
    """Run a launcher's command line.

    Parameters
    ----------
    command
        What it asks for.
    file
        Where its script is, if the command does not say so from here.
    cluster, limit_s, training, last, steps
        As for ``Session``.

    Raises
    ------
    ScenarioError
        torch is not installed, or the cluster has not what the command asks for.
    """
    file = command.file(Path()) if file is None else file
    text = file.read_text(encoding="utf-8")
    code = compile(text, str(file), "exec")
    if find_spec("torch") is None:
        raise ScenarioError(
            f"{file}   needs torch, which is not installed: pip install raysim[torch]"
        )
    import_module("torch")
    folder = Path() if command.module else file.parent
    load_for(text, folder)  # C code looks at clocks when it is loaded: before the world
    session = Session(cluster, limit_s=limit_s, training=training, last=last, steps=steps)
    with emulated_world():
        sys.path.insert(0, str(folder.resolve()))
        session.run(Ranks(session, command, file, code).play)
    return session
