"""``FullyShardedDataParallel`` and ``fully_shard`` in training workers: what they ask of the tower.

Real counterparts: ``torch/distributed/fsdp`` of torch 2.x. Parameters stay whole, as shapes; what
sharding them takes is in the step's prediction.

Not modelled: policies that are functions of the script's own, meshes of two dimensions, sharded
state dicts (checkpoints hold the whole model).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.fsdp as torch_fsdp
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import FSDP_PREFIX, TrainingState
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.utils import _replace_by_prefix
from torch.nn.modules.module import _IncompatibleKeys

from raysim.rayapi.shapes import sharded
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.shapes.mesh import ranks_of
from raysim.rayapi.shapes.plans import DTYPES, Wrapping, class_of
from raysim.rayapi.shapes.steps import Steps
from raysim.rayapi.shapes.wrappers import handed_on, unsynced
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.training.settings.fsdp import FsdpSettings

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

PEFT = "peft.utils.other"


def install(r: Replaced) -> None:
    """Constructors and methods of both versions."""
    cls = FullyShardedDataParallel
    r.around(cls, "__init__", _version1)
    r.around(cls, "forward", handed_on)
    r.around(cls, "no_sync", lambda _real, steps, _self: unsynced(steps))
    r.around(cls, "clip_grad_norm_", _clip)
    r.call(cls, "optim_state_dict", lambda _s, _model, optim, *_a, **_k: optim.state_dict())
    r.call(cls, "optim_state_dict_to_load", _to_load)
    r.call(state_dict, "set_model_state_dict", lambda *_a, **_k: _IncompatibleKeys([], []))
    r.call(state_dict, "set_optimizer_state_dict", lambda *_a, **_k: None)
    r.call(cls, "state_dict_type", lambda *_a, **_k: nullcontext())
    r.call(cls, "summon_full_params", lambda *_a, **_k: nullcontext())
    r.call(torch_fsdp, "fully_shard", _version2)
    r.around(FSDPModule, "_apply", _apply_to_whole)


def _clip(_real: Any, steps: Steps, self: Any, max_norm: float, *_more: Any) -> torch.Tensor:
    del self
    steps.clipping = float(max_norm)
    return torch.empty(())


def _to_load(_steps: Steps, model: Any, optim: Any, optim_state_dict: Any, **_more: Any) -> Any:
    """Of ranks that have not read it: the optimizer's own, which has no other values."""
    del model
    return optim_state_dict or optim.state_dict()


def _version1(
    _real: Any, steps: Steps, self: Any, module: Any, process_group: Any = None,
    sharding_strategy: Any = None, cpu_offload: Any = None, auto_wrap_policy: Any = None,
    backward_prefetch: Any = torch_fsdp.BackwardPrefetch.BACKWARD_PRE, mixed_precision: Any = None,
    *_positions: Any, forward_prefetch: bool = False, limit_all_gathers: bool = True,
    use_orig_params: bool = False, device_mesh: Any = None, **_others: Any,
) -> None:  # fmt: skip
    """``FullyShardedDataParallel(module)``."""
    steps.worker.expect_group()
    if process_group is not None and not ranks_of(process_group):
        raise NotEmulatedError("FullyShardedDataParallel(process_group=)", "all ranks")
    replicas = device_mesh.size(0) if getattr(device_mesh, "ndim", 1) == 2 else 1
    torch.nn.Module.__init__(self)
    self.training_state = TrainingState.IDLE
    self._fsdp_wrapped_module = module
    self._register_state_dict_hook(_without_wrapper)
    self._register_load_state_dict_pre_hook(_with_wrapper)
    mixed = mixed_precision
    self.raysim_wrapping = Wrapping(
        module=module,
        engine="fsdp",
        meets=True,
        among=len(ranks_of(process_group) or ()),
        fsdp=FsdpSettings(
            version=1,
            replicas=replicas,
            sharding_strategy=getattr(sharding_strategy, "name", "FULL_SHARD"),
            param_dtype=DTYPES.get(getattr(mixed, "param_dtype", None)),
            reduce_dtype=DTYPES.get(getattr(mixed, "reduce_dtype", None)),
            cpu_offload=bool(getattr(cpu_offload, "offload_params", False)),
            backward_prefetch=getattr(backward_prefetch, "name", None),
            forward_prefetch=forward_prefetch,
            limit_all_gathers=limit_all_gathers,
            use_orig_params=use_orig_params,
            **{"trained_apart": False} | _policy(auto_wrap_policy),
        ),
    )


def _without_wrapper(_module: Any, named: Any, prefix: str, _metadata: Any) -> None:
    """Names in a state dict are the model's own."""
    _replace_by_prefix(named, f"{prefix}{FSDP_PREFIX}", prefix)


def _with_wrapper(named: Any, prefix: str, *_more: Any) -> None:
    """And back."""
    _replace_by_prefix(named, prefix, f"{prefix}{FSDP_PREFIX}")


def _policy(policy: Any) -> dict[str, Any]:
    """Which modules are wrapped one by one."""
    if policy is None:
        return {"wrap": False}
    if isinstance(policy, ModuleWrapPolicy):
        classes = policy._module_classes  # noqa: SLF001  (it has no other door)
        return {"layer_classes": _names(classes)}
    said = getattr(policy, "keywords", {})
    parts = {_module(p): p for p in said.get("policies", ())}
    if PEFT in parts and len(parts) == 2:  # its fsdp_auto_wrap_policy: what is trained, and classes
        return _policy(next(p for at, p in parts.items() if at != PEFT)) | {"trained_apart": True}
    if "transformer_layer_cls" in said:
        classes = said["transformer_layer_cls"]
        return {"layer_classes": _names(c for c in classes if not c.__module__.startswith("peft."))}
    if getattr(policy, "func", policy).__name__ == "size_based_auto_wrap_policy":
        return {"min_num_params": int(said.get("min_num_params", 10**8))}
    raise NotEmulatedError(
        f"auto_wrap_policy={policy!r}", "ModuleWrapPolicy and transformer_auto_wrap_policy"
    )


def _module(policy: Any) -> str:
    """Where the function that a ``lambda_auto_wrap_policy`` asks is from."""
    asked = getattr(policy, "keywords", {}).get("lambda_fn")
    return str(getattr(asked, "__module__", ""))


def _names(classes: Any) -> tuple[str, ...]:
    return tuple(sorted(cls.__name__ for cls in classes))


_MIXED = ("param_dtype", "reduce_dtype")
DIFFERS = (
    "fully_shard: mp_policy of the blocks is not that of the module around them: embedding and "
    "head are taken to compute and reduce as the blocks do"
)


def _version2(
    steps: Steps, module: Any, *, mesh: Any = None, reshard_after_forward: Any = None,
    mp_policy: Any = None, offload_policy: Any = None, **_others: Any,
) -> Any:  # fmt: skip
    """``fully_shard(module)``: of blocks first, then of the model around them.

    Several modules in one group are the model's last norm and its head, as torchtitan and
    Accelerate put them together.
    """
    if getattr(mesh, "ndim", 1) > 2:
        raise NotEmulatedError(
            "fully_shard on a mesh of more than two dimensions", "replicas by shards"
        )
    whole = sharded.whole_mesh(steps) if mesh is None else mesh
    if isinstance(module, list | tuple):
        for each in module:
            _sharded(steps, each, whole).raysim_sharded = "end"
            each.raysim_group = id(module[0]), reshard_after_forward
        return module
    inner = [m for m in module.modules() if m is not module and hasattr(m, "raysim_sharded")]
    ends = any(m.raysim_sharded == "end" for m in inner)
    blocks = [m for m in inner if not ends or _is_block(m)]
    after = reshard_after_forward
    dtypes = tuple(DTYPES.get(getattr(mp_policy, name, None)) for name in _MIXED)
    if blocks:
        of_blocks = blocks[0].raysim_wrapping.fsdp
        after = of_blocks.reshard_after_forward
        if dtypes != (of_blocks.param_dtype, of_blocks.reduce_dtype):
            steps.say(DIFFERS)
            dtypes = of_blocks.param_dtype, of_blocks.reduce_dtype
    module.raysim_sharded, module.raysim_group = "group", (id(module), reshard_after_forward)
    module.raysim_wrapping = Wrapping(
        module=module,
        engine="fsdp",
        meets=True,
        fsdp=FsdpSettings(
            replicas=mesh.size(0) if getattr(mesh, "ndim", 1) == 2 else 1,
            reshard_after_forward=True if after is None else after,
            root_reshard_after_forward=bool(reshard_after_forward),
            param_dtype=dtypes[0],
            reduce_dtype=dtypes[1],
            cpu_offload=type(offload_policy).__name__ == "CPUOffloadPolicy",
            layer_classes=_names({class_of(m) for m in blocks}),
            wrap=bool(blocks),
            wrap_ends=ends,
        ),
    )
    return _sharded(steps, module, whole)


def _apply_to_whole(_real: Any, _steps: Steps, module: Any, *args: Any, **kwargs: Any) -> Any:
    """``to_empty`` and its like: there is nothing to gather or cut again."""
    found = super(FSDPModule, module)._apply(*args, **kwargs)
    sharded.mark_tensors(module.parameters(), module.raysim_mesh)  # which may be new ones
    return found


def _is_block(module: Any) -> bool:
    """Neither the embedding nor among the last."""
    return module.raysim_sharded != "end" and not isinstance(module, torch.nn.Embedding)


def _sharded(steps: Steps, module: Any, mesh: Any) -> Any:
    """With the methods that a sharded module has, and parameters that say so."""
    sharded.mark(steps, module, mesh)
    for name in _MOVES:
        setattr(module, name, _no_effect)
    module.set_requires_gradient_sync = _set_sync
    kind = type(module)
    if not issubclass(kind, FSDPModule):
        module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    return module


_MOVES = (
    "set_is_last_backward", "unshard", "reshard",
    "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch",
    "set_requires_all_reduce", "set_reshard_after_backward",
)  # fmt: skip


def _set_sync(requires_gradient_sync: bool, **_others: Any) -> None:
    steps = steps_here()
    if steps is not None:
        steps.sync = requires_gradient_sync


def _no_effect(*_args: Any, **_kwargs: Any) -> None:
    """What only moves parameters."""
