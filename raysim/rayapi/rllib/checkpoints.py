"""Checkpoints of an algorithm: its counters and configuration; weights are sizes without values.

Real counterpart: ``ray/rllib/utils/checkpoints.py`` (2.60). A file of weights is as long as the
real one and empty inside; Adam's state is twice as much.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.tune.trainable import WRITE_BYTES_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.rllib.algorithm import Algorithm

METADATA_FILE, STATE_FILE = "rllib_checkpoint.json", "algorithm_state.pkl"
MODULES, OPTIMIZERS = "learner_group/learner/rl_module", "learner_group/learner/state.pkl"


def save(algorithm: Algorithm, path: Any) -> str:
    """Into a folder, a new one if none is said; the bytes take their time."""
    folder = _folder(path) if path is not None else Path(tempfile.mkdtemp(prefix="rllib-"))
    size_bytes = write(algorithm, str(folder))
    fiber = this_fiber()
    fiber.lead_ns += round(size_bytes / WRITE_BYTES_PER_S * 1e9)
    fiber.settle()
    return str(folder)


def saved(algorithm: Algorithm, path: Any) -> Any:
    """``Trainable.save``."""
    where = algorithm.save_to_path(path)
    return SimpleNamespace(checkpoint=Checkpoint(where), metrics={})


def write(algorithm: Algorithm, path: str) -> int:
    """Its files, and their bytes."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    counted = dict(vars(algorithm.counted))
    state = {"class": type(algorithm), "config": algorithm.config, "counted": counted}
    (folder / STATE_FILE).write_bytes(dump_code(state))
    about = {"type": "Algorithm", "checkpoint_version": "2.1", "format": "cloudpickle"}
    (folder / METADATA_FILE).write_text(json.dumps(about))
    files = {f"{MODULES}/{p}/module_state.pkl": b for p, b in algorithm.weights_bytes.items()}
    files[OPTIMIZERS] = 2 * sum(files.values())
    for name, size_bytes in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as weights:
            weights.truncate(size_bytes)
    return sum(files.values())


def load(path: Any) -> dict[str, Any]:
    """What a checkpoint says.

    Raises
    ------
    ValueError
        There is none.
    """
    file = _folder(path) / STATE_FILE
    if not file.exists():
        raise ValueError(f"{path}: no checkpoint of an algorithm is there ({STATE_FILE})")
    found: dict[str, Any] = load_code(file.read_bytes())
    return found


def restore(algorithm: Algorithm, path: Any) -> None:
    """Count on from it."""
    vars(algorithm.counted).update(load(path)["counted"])
    algorithm.counts_on()


def _folder(path: Any) -> Path:
    said = str(getattr(path, "path", path))
    return Path(urlparse(said).path if said.startswith("file:") else said)
