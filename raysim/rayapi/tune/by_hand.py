"""A class Trainable that the program itself steps, saves and restores, without a Tuner.

Real counterpart: these methods of ``ray/tune/trainable/trainable.py`` (2.60).
"""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.library_code import session_here

_DICT = "dict_checkpoint.pkl"
"""Of a ``save_checkpoint`` that has returned a dictionary."""


@dataclass
class TrainingResult:
    """What ``save`` returns and ``restore`` takes."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]


class ByHand:
    """``train``, ``save``, ``restore`` and ``stop``."""

    config: Any
    _iteration = 0
    _time_total_s = 0.0
    _last: dict[str, Any] | None = None

    def step(self) -> dict[str, Any]:
        """Users override."""
        raise NotImplementedError

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Users override."""
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Users override."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Users override."""

    def train(self) -> dict[str, Any]:
        """One ``step``, and what is filled in."""
        session = session_here()
        began_ns = session.now_ns
        result = self.step()
        assert isinstance(result, dict), "step() needs to return a dict."
        took_s = result.get("time_this_iter_s") or (session.now_ns - began_ns) / 1e9
        self._iteration += 1
        self._time_total_s += took_s
        self._last = {
            "done": False, "training_iteration": self._iteration, **result,
            "time_this_iter_s": took_s, "time_total_s": self._time_total_s, "config": self.config,
        }  # fmt: skip
        return self._last

    def save(self, checkpoint_dir: str | None = None) -> TrainingResult:
        """Into a folder: what ``save_checkpoint`` writes or returns."""
        folder = Path(checkpoint_dir or tempfile.mkdtemp())
        folder.mkdir(parents=True, exist_ok=True)
        found = self.save_checkpoint(str(folder))
        if isinstance(found, dict):
            (folder / _DICT).write_bytes(pickle.dumps(found))
        return TrainingResult(Checkpoint.from_directory(folder), dict(self._last or {}))

    def restore(self, checkpoint_path: Any) -> None:
        """From what ``save`` has returned, a checkpoint, or a folder."""
        found = checkpoint_path
        if isinstance(found, str):
            found = Checkpoint.from_directory(found)
        if isinstance(found, Checkpoint):
            found = TrainingResult(found, {})
        self._iteration = found.metrics.get("training_iteration", 0)
        self._time_total_s = found.metrics.get("time_total_s", 0.0)
        kept = Path(found.checkpoint.path) / _DICT
        is_dict = kept.exists()
        self.load_checkpoint(pickle.loads(kept.read_bytes()) if is_dict else str(kept.parent))  # noqa: S301  (its own)

    def stop(self) -> None:
        """It is over."""
        self.cleanup()
