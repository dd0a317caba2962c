"""``generate`` of transformers in workers: when it ends, where nobody knows what was said.

Real counterpart: ``transformers/generation/stopping_criteria.py``. Answers are as long as they may
be: a length or a time ends them, an end-of-sequence token that nobody has computed does not.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.generation.stopping_criteria``."""
    r.around(module.StoppingCriteriaList, "__call__", _ends)


def _ends(_real: Any, _steps: Steps, self: Any, ids: Any, scores: Any, **kwargs: Any) -> Any:
    """For all answers of a batch alike."""
    done = False
    for criterion in self:
        said = criterion(ids, scores, **kwargs)
        known = getattr(said, "raysim_values", said)
        if isinstance(known, torch.Tensor):
            done = done or (not known.is_meta and bool(known.all()))
        else:
            done = done or bool(known)
    return torch.full((ids.shape[0],), done, device=ids.device, dtype=torch.bool)
