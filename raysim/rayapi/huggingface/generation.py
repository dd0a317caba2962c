"""``generate`` of transformers in workers: when it ends, where nobody knows what was said.

Real counterpart: ``transformers/generation/stopping_criteria.py``, ``utils.py``. Answers are as
long as they may be: a length or a time ends them, an end-of-sequence token that nobody has computed
does not. They are of one token that ends nothing: whoever looks for an end finds none (GRPO).
"""

from __future__ import annotations

from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.known import MOST_KNOWN

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.generation.stopping_criteria``."""
    r.around(module.StoppingCriteriaList, "__call__", _ends)


def install_mixin(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.generation.utils``."""
    r.around(module.GenerationMixin, "generate", _generate)


_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def _generate(real: Any, steps: Steps, self: Any, *args: Any, **kwargs: Any) -> Any:
    mode = steps.mode
    before, mode.generates = mode.generates, True
    try:
        out = real(self, *args, **kwargs)
    finally:
        mode.generates = before
    ids = getattr(out, "sequences", out)
    if not isinstance(ids, torch.Tensor) or not ids.is_meta or ids.numel() > MOST_KNOWN:
        return out
    if not hasattr(ids, "raysim_values"):
        prompts = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        known = getattr(prompts, "raysim_values", None)
        with torch._C.DisableTorchFunction():  # noqa: SLF001  (no work of the script's)
            said = torch.full(ids.shape, _token(self, kwargs), dtype=ids.dtype)
            if known is not None and not self.config.is_encoder_decoder:
                each = len(ids) // len(known)
                said[:, : known.shape[1]] = known.repeat_interleave(each, dim=0)
        ids.raysim_values = said  # type: ignore[attr-defined]
    return out


def _token(model: Any, kwargs: dict[str, Any]) -> int:
    """The first that means nothing to whoever generates."""
    ends: set[Any] = set()
    for where in (kwargs, vars(kwargs.get("generation_config") or model.generation_config)):
        for name in _ENDS:
            said = where.get(name)
            ends.update(said if isinstance(said, list | tuple) else [said])
    return next(i for i in count() if i not in ends)


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
