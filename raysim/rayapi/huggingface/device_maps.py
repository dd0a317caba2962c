"""``device_map`` of ``from_pretrained``, and Accelerate's ``dispatch_model``: GPUs, the CPU.

Real counterparts: ``transformers/integrations/accelerate.py`` (5.24) and ``accelerate/
big_modeling.py`` (1.15), whose own code says which module goes where, by the memory that each GPU
has. Its hooks move a module's inputs to its GPU, and what the whole model returns back to where its
inputs were. What that takes: ``shapes.apart``; what layers on the CPU take: ``shapes.fetched``.

Simplified: inputs that every block is given anew (masks, positions) are copied for nothing, and so
are logits that go back to the first GPU; without the hooks' Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes import devices, fetched
from raysim.rayapi.unsupported import NotEmulatedError

_SURE = 0.8
"""Of a GPU's free memory; Accelerate keeps a layer's size and more of it free."""

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of ``device_map`` that divide a model over all GPUs that a process sees, and the CPU."""


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``accelerate.big_modeling``."""

    def dispatched(
        _real: Any, steps: Steps, model: Any, device_map: Any, *_args: Any, skip_keys: Any = None,
        **_options: Any,
    ) -> Any:  # fmt: skip
        return _dispatched(steps, model, device_map, skip_keys)

    r.around(module, "dispatch_model", dispatched)


def asked_for(steps: Steps, options: dict[str, Any]) -> tuple[Any, Any]:
    """``device_map`` and ``max_memory``, if they may divide a model over a process's GPUs."""
    said, most = options.pop("device_map", None), options.pop("max_memory", None)
    alone = steps.worker.visible_devices > 0 and steps.worker.context.world_size == 1
    several = isinstance(said, Mapping) and len({*said.values()}) > 1
    return (said, most) if alone and (several or said in SPREADS) else (None, None)


def fits_one(steps: Steps, size_bytes: int, said: Any, most: Any) -> bool:
    """The only GPU has room for more than a model of this size: nothing is divided."""
    free_bytes, _ = torch.cuda.mem_get_info()
    alone = steps.worker.visible_devices == 1 and most is None and not isinstance(said, Mapping)
    return alone and size_bytes < _SURE * free_bytes


def divided(steps: Steps, model: Any, said: Any, most: Any) -> None:
    """A model of transformers, as its ``device_map`` and ``max_memory`` ask for."""
    from transformers.integrations.accelerate import (
        _get_device_map,
        check_and_set_device_map,
    )

    found = _get_device_map(model, check_and_set_device_map(said), most, None)
    if len({*found.values()}) > 1:
        _dispatched(steps, model, found, model._skip_keys_device_placement)  # noqa: SLF001
    else:
        model.to(next(iter(found.values())))
        model.hf_device_map = dict(found)


def _dispatched(steps: Steps, model: Any, device_map: Mapping[str, Any], skip: Any) -> Any:
    """With parameters and buffers on these GPUs, and modules that move their inputs there.

    Raises
    ------
    NotEmulatedError
        Some stay on a disk.
    """
    from accelerate.utils import send_to_device  # type: ignore[import-untyped]

    on_disk = [name for name, where in device_map.items() if str(where) == "disk"]
    if on_disk:
        raise NotEmulatedError(
            f"device_map: {', '.join(on_disk)} on a disk",
            "nodes whose main memory holds what GPUs do not, or max_memory with a share of it: "
            '{0: "70GiB", "cpu": "200GiB"}',
        )
    current = steps.worker.devices[0]
    main = next((gpu for gpu in {*device_map.values()} if str(gpu) != "cpu"), "cpu")
    parts = {name: model.get_submodule(name) for name in device_map if _is_module(model, name)}
    away = [name for name, where in device_map.items() if str(where) == "cpu" and main != "cpu"]
    fetched.keep(
        steps, (parts[name] for name in away if name in parts),
        (part for name, part in parts.items() if name and name not in away),
    )  # fmt: skip

    def moves(device: Any) -> Any:
        def hook(_module: Any, args: Any, kwargs: Any) -> Any:
            return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=skip)

        return hook

    for name, said in sorted(device_map.items()):  # a part's comes after the whole's
        part, where = parts.get(name), main if name in away else said
        tensors = [model.get_parameter(name)] if part is None else [
            *part.parameters(), *part.buffers()
        ]  # fmt: skip
        for tensor in tensors:
            devices.place(tensor, where, current)
        for inner in () if part is None else part.modules():  # a list of blocks is not called
            if inner.state_dict():
                inner.register_forward_pre_hook(moves(where), with_kwargs=True)
    model.register_forward_hook(lambda _m, _args, out: send_to_device(out, main, skip_keys=skip))
    model.hf_device_map = dict(device_map)
    steps.forget_signatures()
    return model


def _is_module(model: Any, name: str) -> bool:
    return not name or name in dict(model.named_modules())
