"""``from_pretrained`` of transformers in training workers: the model that a config describes.

Real counterpart: ``transformers/modeling_utils.py`` (4.51 to 5). Only the config is read, from a
folder or the hub's cache; weights have no values, so their files need not be there. Reading them is
paid once per node, its ranks sharing: the others find them in the page cache.

Not modelled: adapters that were saved, ``device_map`` but over several GPUs of one process.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.huggingface import device_maps, distributed, eight_bit, flash, four_bit
from raysim.rayapi.shapes.here import steps_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_AUTO_FROM = 5
"""The major version from which weights keep the type that they were saved in."""


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.modeling_utils``."""

    def make(real: Any) -> Any:
        def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
            steps = steps_here()
            if steps is None:
                return real.__func__(cls, name, *args, **kwargs)
            return _described(steps, cls, name, kwargs)

        return classmethod(from_pretrained)

    r.set(module.PreTrainedModel, "from_pretrained", make)
    flash.install(r, module)
    r.set(module.ModuleUtilsMixin, "num_parameters", _without_bitsandbytes)
    r.around(module.ModuleUtilsMixin, "num_parameters", _counted_once)


def forget() -> None:
    """Transformers knows the Trainer's DeepSpeed JSON as long as somebody holds it: no longer."""
    found = sys.modules.get("transformers.integrations.deepspeed")
    if found is not None:
        found.unset_hf_deepspeed_config()


def _without_bitsandbytes(real: Any) -> Any:
    """``num_parameters``: of weights in 4 bits it asks that package, which need not be here."""

    def num_parameters(self: Any, only_trainable: bool = False, *args: Any, **kwargs: Any) -> Any:
        if steps_here() is None or not getattr(self, "is_loaded_in_4bit", False):
            return real(self, only_trainable, *args, **kwargs)
        self.is_loaded_in_4bit = False
        try:
            counted = real(self, only_trainable, *args, **kwargs)
        finally:
            self.is_loaded_in_4bit = True
        packed = [p for p in self.parameters() if isinstance(p, four_bit.Params4bit)]
        return counted + (0 if only_trainable else sum(p.numel() for p in packed))

    return num_parameters


def _counted_once(
    real: Any, steps: Steps, self: Any, only_trainable: bool = False, *args: Any, **kwargs: Any
) -> Any:  # fmt: skip
    """While steps are taken, in which the Trainer asks with every micro-batch."""
    if steps.latest is None or only_trainable:
        return real(self, only_trainable, *args, **kwargs)
    known = vars(self).setdefault("raysim_num_parameters", {})
    asked = args, tuple(kwargs.items())
    if asked not in known:
        known[asked] = real(self, only_trainable, *args, **kwargs)
    return known[asked]


def _described(steps: Steps, cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    """A model of the config's shapes."""
    config, more = kwargs.pop("config", None), dict(kwargs)
    asked, parallel = more.pop("quantization_config", None), distributed.asked_for(more)
    said = more.pop("dtype", more.pop("torch_dtype", None))
    mapped = more.get("device_map") is not None and str(more["device_map"]) not in {"cpu", "meta"}
    over, most = device_maps.asked_for(steps, more)
    attention = more.pop("attn_implementation", None)
    if not hasattr(config, "to_dict"):
        config, more = cls.config_class.from_pretrained(
            config or name, return_unused_kwargs=True, **more
        )
    config = deepcopy(config)  # the script's own stays as it is
    if name is not None:
        config.name_or_path = name  # which trainers load their tokenizer by
    if attention is not None:
        config._attn_implementation = attention  # noqa: SLF001
    model = cls(config)
    dtype = _dtype(said, config)
    if dtype is not None:
        model = model.to(dtype)
    whole_bytes = size_bytes(model)
    saved = four_bit.saved_so(config) if asked is None else None
    quantized = saved or four_bit.asked_for(asked)
    if quantized is not None:
        four_bit.convert(model, quantized)
        if quantized.load_in_8bit:
            steps.say(eight_bit.SAID)
    file_bytes = whole_bytes if saved is None else size_bytes(model)
    model = distributed.spread(cls, model, parallel)
    fits = over is None or device_maps.fits_one(steps, size_bytes(model), over, most)
    if not fits and (quantized is None or steps.worker.visible_devices > 1):
        device_maps.divided(steps, model, over, most)
    if mapped and steps.worker.answers:
        steps.worker.rests_with(model)
    steps.worker.read_bytes(file_bytes / steps.worker.context.local_world_size)
    return model.eval()


def size_bytes(model: Any) -> int:
    """Of its weights."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _dtype(said: Any, config: Any) -> torch.dtype | None:
    """What weights are loaded in; None: what torch makes by default."""
    from transformers import __version__ as version

    if said is None and int(version.partition(".")[0]) >= _AUTO_FROM:
        said = "auto"
    if said == "auto":
        said = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(said, str):
        said = getattr(torch, said.removeprefix("torch."))
    found: torch.dtype | None = said
    return found
