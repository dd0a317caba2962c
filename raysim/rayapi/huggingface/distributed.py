"""``from_pretrained(tp_plan="auto")`` and ``distributed_config=`` of transformers in workers.

Real counterpart: ``transformers/distributed`` of transformers 5.2x, whose tensor parallelism is
torch's ``DTensor`` and whose data parallelism is FSDP2: it runs as it is on shapes, before weights
are read. Earlier versions have code of their own (refused).
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

_STANDALONE = ("tp_plan", "tp_size")


def asked_for(more: dict[str, Any]) -> Any | None:
    """What a call says of it, taken out of its arguments; None: nothing.

    Raises
    ------
    NotEmulatedError
        This transformers spreads parameters in a way of its own.
    """
    config = more.pop("distributed_config", None)
    alone = {key: more.pop(key) for key in _STANDALONE if more.get(key) is not None}
    if config is None and not alone:
        return None
    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.mixin import apply_tensor_parallelism  # noqa: F401
    except ImportError as error:
        raise NotEmulatedError(
            f"from_pretrained({', '.join(alone) or 'distributed_config'}=) of this transformers",
            "transformers 5.2x, or torch's parallelize_module over a DeviceMesh",
        ) from error
    return config or DistributedConfig(**alone)


def spread(cls: Any, model: Any, config: Any | None) -> Any:
    """The model over the mesh of its config."""
    if config is None:
        return model
    config, _, meshes = cls.prepare_distribute_model(config)
    return cls.maybe_distribute_model(model, config, meshes)
