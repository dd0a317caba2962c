"""FlashAttention asked for of transformers' models: its package need not be here.

Real counterpart: ``transformers/modeling_utils.py``. From transformers 5 on the config keeps the
name, so that the model makes no masks, and torch's own fused attention runs in its place; what a
mask pads is computed. Before, the model is made with torch's attention and its masks.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.shapes.here import steps_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.modeling_utils``."""
    if hasattr(module.AttentionInterface, "get_interface"):  # transformers 5
        r.around(module.PreTrainedModel, "_check_and_adjust_attn_implementation", _as_asked)
        r.around(module.AttentionInterface, "get_interface", _in_its_place)
    else:
        r.around(module.PreTrainedModel, "__init__", _made_with_torchs)
        r.set(module.PreTrainedModel, "_from_config", _from_config)


def attention_of(model: Any) -> Any:
    """As the script asked for it."""
    asked = getattr(model, "raysim_attention", None)
    return asked or model.config._attn_implementation  # noqa: SLF001  (it has no other door)


def _is_flash(asked: Any) -> bool:
    return isinstance(asked, str) and "flash" in asked


def _as_asked(real: Any, _steps: Steps, self: Any, asked: Any, *args: Any, **more: Any) -> Any:
    return asked if _is_flash(asked) else real(self, asked, *args, **more)


def _in_its_place(real: Any, _steps: Steps, self: Any, asked: Any, *args: Any, **more: Any) -> Any:
    """Torch's own attention of the same sequences, without a mask."""
    if not _is_flash(asked):
        return real(self, asked, *args, **more)
    fused = real(self, "sdpa", *args, **more)

    def attend(module: Any, query: Any, key: Any, value: Any, _mask: Any, **how: Any) -> Any:
        return fused(module, query, key, value, None, **how)

    return attend


def _made_with_torchs(
    real: Any, _steps: Steps, self: Any, config: Any, *args: Any, **more: Any
) -> None:
    asked = getattr(config, "_attn_implementation", None)
    if _is_flash(asked):
        config._attn_implementation = "sdpa"  # noqa: SLF001  (as above)
        self.__dict__["raysim_attention"] = asked
    real(self, config, *args, **more)


def _from_config(real: Any) -> Any:
    """It asks for the package ahead of the model."""

    def from_config(cls: Any, /, config: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("attn_implementation")
        if steps_here() is None or not _is_flash(asked):
            return real.__func__(cls, config, **kwargs)
        model = real.__func__(cls, config, **{**kwargs, "attn_implementation": "sdpa"})
        model.raysim_attention = asked
        return model

    return classmethod(from_config)
