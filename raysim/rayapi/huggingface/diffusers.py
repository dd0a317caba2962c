"""``from_pretrained`` of diffusers in training workers: the model that a config describes.

Real counterpart: ``diffusers/models/modeling_utils.py`` (0.42). As of transformers
(``pretrained.py``), only the config is read; weights are paid for and have no values.

Not modelled: ``device_map``, quantized weights, pipelines (their parts are loaded so, one by one).
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.huggingface.pretrained import size_bytes
from raysim.rayapi.shapes.here import steps_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_WHERE = (
    "cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token",
)  # fmt: skip
"""Of the arguments, those that say where the config is."""
_OF_WEIGHTS = ("device_map", "low_cpu_mem_usage", "use_safetensors", "variant")


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``diffusers.models.modeling_utils``."""

    def make(real: Any) -> Any:
        def from_pretrained(cls: Any, /, name: Any, **kwargs: Any) -> Any:
            steps = steps_here()
            if steps is None:
                return real.__func__(cls, name, **kwargs)
            return _described(steps, cls, name, kwargs)

        return classmethod(from_pretrained)

    r.set(module.ModelMixin, "from_pretrained", make)


def _described(steps: Steps, cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    """A model of the config's shapes."""
    where = {key: kwargs.pop(key) for key in _WHERE if key in kwargs}
    dtype = kwargs.pop("torch_dtype", kwargs.pop("dtype", None))
    more = {key: value for key, value in kwargs.items() if key not in _OF_WEIGHTS}
    config, unused = cls.load_config(name, return_unused_kwargs=True, **where, **more)
    model = cls.from_config(config, **unused)
    model.register_to_config(_name_or_path=str(name))
    if dtype is not None:
        model = model.to(dtype)
    steps.worker.read_bytes(size_bytes(model) / steps.worker.context.local_world_size)
    return model.eval()
