"""``evaluate``: metrics of predictions that nobody knows.

Real counterpart: ``evaluate/loading.py``, ``module.py`` (0.4), whose metrics are the hub's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.rayapi.standins.said import program_here, say

if TYPE_CHECKING:
    from types import ModuleType

    from raysim.rayapi.shapes.patches import Replaced

__version__ = "0.4.6"
SAID = "evaluate.load({!r}): its values are nan, as those of the predictions"


class Scores(dict[str, float]):
    """By whatever name somebody asks for one."""

    def __missing__(self, _name: str) -> float:
        return float("nan")


class Metric:
    """``evaluate.EvaluationModule``."""

    def __init__(self, *names: str) -> None:
        self.name = names[0] if names else ""
        self._names = names

    def add(self, *_: Any, **__: Any) -> None:
        """One prediction."""

    def add_batch(self, *_: Any, **__: Any) -> None:
        """Several."""

    def compute(self, *_: Any, **__: Any) -> Scores:
        """Of those, which have no values."""
        return Scores(dict.fromkeys(self._names, float("nan")))


def load(path: str, config_name: str | None = None, *_: Any, **__: Any) -> Metric:
    """``evaluate.load``."""
    say(SAID.format(path))
    name = str(path).rpartition("/")[2].removesuffix(".py")
    return Metric(*_SCORES.get(config_name or name, _SCORES.get(name, (name,))))


_SCORES = {
    "mrpc": ("accuracy", "f1"), "qqp": ("accuracy", "f1"), "glue": ("accuracy",),
    "stsb": ("pearson", "spearmanr"), "cola": ("matthews_correlation",),
    "squad": ("exact_match", "f1"), "squad_v2": ("exact", "f1"), "sacrebleu": ("score",),
    "rouge": ("rouge1", "rouge2", "rougeL", "rougeLsum"), "mean_iou": ("mean_iou", "mean_accuracy"),
    "seqeval": ("overall_precision", "overall_recall", "overall_f1", "overall_accuracy"),
}  # fmt: skip
"""What they compute, where it is not their name."""


def combine(evaluations: Any, *_: Any, **__: Any) -> Metric:
    """``evaluate.combine``."""
    return Metric(*(e if isinstance(e, str) else e.name for e in evaluations))


def install(r: Replaced, module: ModuleType) -> None:
    """Of the installed package: its metrics are the hub's, which is not asked."""
    r.around(module, "load", lambda _real, _who, *a, **k: load(*a, **k), program_here)
    r.around(module, "combine", lambda _real, _who, *a, **k: combine(*a, **k), program_here)
