"""``FullyShardedDataParallel`` and ``fully_shard`` in training workers: what they ask of the tower.

Real counterparts: ``torch/distributed/fsdp`` of torch 2.x. Parameters stay whole, as shapes; what
sharding them takes is in the step's prediction.

Not modelled: policies that are functions of the script's own, meshes of two dimensions, sharded
state dicts (checkpoints hold the whole model).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
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
from raysim.rayapi.shapes.left_out import cut_at, left_out
from raysim.rayapi.shapes.mesh import ranks_of
from raysim.rayapi.shapes.plans import DTYPES, Wrapping, class_of
from raysim.rayapi.shapes.sharded_stages import groups_of
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
    use_orig_params: bool = False, device_mesh: Any = None, ignored_modules: Any = None,
    ignored_states: Any = None, **_others: Any,
) -> None:  # fmt: skip
    """``FullyShardedDataParallel(module)``."""
    ignored = left_out(module, [*(ignored_modules or ()), *(ignored_states or ())])
    if ignored:
        steps.say(IGNORED)
    if getattr(mixed_precision, "keep_low_precision_grads", False):
        steps.say(KEPT)
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
            ignored=ignored,
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


IGNORED = (
    "FSDP's ignored parameters (ignored_params, ignored_modules, ignored_states): every rank has "
    "them, their gradients and the optimizer's states whole, and nobody reduces the gradients"
)
KEPT = (
    "MixedPrecision.keep_low_precision_grads: gradients are predicted in the type that parameters "
    "are stored in"
)
OUTPUT = (
    "fully_shard: casts of what modules return (MixedPrecisionPolicy.output_dtype) are not priced, "
    "nor the casts back of what the next ones are given"
)
_MIXED = ("param_dtype", "reduce_dtype")
DIFFERS = (
    "fully_shard: mp_policy of the blocks is not that of the module around them: embedding and "
    "head are taken to compute and reduce as the blocks do"
)


def _version2(
    steps: Steps, module: Any, *, mesh: Any = None, reshard_after_forward: Any = None,
    mp_policy: Any = None, offload_policy: Any = None, ignored_params: Any = None,
    shard_placement_fn: Any = None, **_others: Any,
) -> Any:  # fmt: skip
    """``fully_shard(module)``: of blocks first, then of the model around them.

    Several modules in one group are the model's last norm and its head, as torchtitan and
    Accelerate put them together.
    """
    if getattr(mesh, "ndim", 1) > 2:
        raise NotEmulatedError(
            "fully_shard on a mesh of more than two dimensions", "replicas by shards"
        )
    if ignored_params:
        steps.say(IGNORED)
    if getattr(mp_policy, "output_dtype", None) not in (None, getattr(mp_policy, "param_dtype", 0)):
        steps.say(OUTPUT)
    whole = sharded.whole_mesh(steps) if mesh is None else mesh
    for each in module if isinstance(module, list | tuple) else (module,):
        ignored = left_out(each, ignored_params or ())
        dims = cut_at(each, shard_placement_fn, whole.size(whole.ndim - 1))
        sharded.mark_inner(each, whole, dims)
    if isinstance(module, list | tuple):
        for each in module:
            _sharded(steps, each, whole).raysim_sharded = "end"
            each.raysim_group = id(module[0]), reshard_after_forward
        return module
    inner = [m for m in module.modules() if m is not module and hasattr(m, "raysim_sharded")]
    ends = any(m.raysim_sharded == "end" for m in inner)
    blocks = [m for m in inner if not ends or _is_block(m)]
    dtypes = tuple(DTYPES.get(getattr(mp_policy, name, None)) for name in _MIXED)
    if blocks:
        of_blocks = blocks[0].raysim_wrapping.fsdp
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
            param_dtype=dtypes[0],
            reduce_dtype=dtypes[1],
            cpu_offload=type(offload_policy).__name__ == "CPUOffloadPolicy",
            pin_memory=getattr(offload_policy, "pin_memory", True),
            layer_classes=_names({class_of(m) for m in blocks}),
            wrap=bool(blocks),
            wrap_ends=ends,
            ignored=ignored,
            shard_dims=dims,
        ),
    )
    for each in inner:
        each.__dict__["raysim_within"] = module  # no submodule of it
    _sharded(steps, module, whole)
    _set_after_forward(module)
    return module


def _set_after_forward(module: Any) -> None:
    """What is freed after forward, of all that was said so far: blocks alike, or one by one."""
    every: list[Any] = [m for m in module.modules() if isinstance(m, FSDPModule)]
    first, *others = every
    blocks = [m for m in others if m.raysim_sharded != "end"] or [first]
    afters = [True if a is None else a for a in (m.raysim_group[1] for m in blocks)]
    apart = others and len({bool(a) for a in afters}) > 1
    module.raysim_wrapping = replace(
        module.raysim_wrapping,
        fsdp=replace(
            module.raysim_wrapping.fsdp,
            reshard_after_forward=next(filter(None, afters), False),
            root_reshard_after_forward=bool(first.raysim_group[1]),
            groups=tuple(groups_of(module))[1:] if apart else (),
        ),
    )


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
    module.unshard = _unshard
    module.set_reshard_after_forward = partial(_reshard_after_forward, module)
    module.set_reshard_after_backward = partial(_reshard_after_backward, module)
    module.set_requires_all_reduce = partial(_requires_all_reduce, module)
    module.set_modules_to_forward_prefetch = partial(_prefetch, module, "forward_prefetch")
    module.set_modules_to_backward_prefetch = partial(_prefetch, module, "backward_prefetched")
    for name in _UNPRICED:
        setattr(module, name, _told(name))
    kind = type(module)
    if not issubclass(kind, FSDPModule):
        module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    return module


_MOVES = (
    "set_is_last_backward", "reshard", "reset_iter_state", "set_gradient_divide_factor",
    "set_reduce_scatter_divide_factor", "set_force_sum_reduction_for_comms",
    "set_post_optim_event",
)  # fmt: skip
_UNPRICED = (
    "set_unshard_in_backward", "set_separate_reduce_scatter_group",
    "set_allocate_memory_from_process_group_for_comm", "set_symm_mem_for_comm",
    "set_custom_all_gather", "set_custom_reduce_scatter", "set_all_reduce_hook",
    "set_reduce_scatter_unused_params", "set_reduce_scatter_max_input_buffers",
)  # fmt: skip


def _told(name: str) -> Callable[..., None]:
    """What changes collectives in a way that is not priced."""

    def call(*_args: Any, **_kwargs: Any) -> None:
        steps = steps_here()
        if steps is not None:
            steps.say(f"FSDPModule.{name} is not priced: the prediction is without it")

    return call


def _unshard(async_op: bool = False) -> Any:
    """By hand, ahead of the forward that waits for it."""
    return SimpleNamespace(wait=lambda: None) if async_op else None


def _around(module: Any) -> Any:
    """The outermost that it is wrapped in, whose wrapping counts."""
    while "raysim_within" in vars(module):
        module = vars(module)["raysim_within"]
    return module


def _reshard_after_forward(module: Any, reshard_after_forward: bool, recurse: bool = True) -> None:
    if not isinstance(reshard_after_forward, bool):
        raise ValueError(
            f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}"
        )
    every = module.modules() if recurse else [module]
    wrapped: list[Any] = [m for m in every if isinstance(m, FSDPModule)]
    for each in wrapped:
        each.raysim_group = each.raysim_group[0], reshard_after_forward
    _set_after_forward(_around(module))


def _reshard_after_backward(
    module: Any, reshard_after_backward: bool, *, recurse: bool = True
) -> None:
    """Of all groups, as gradient accumulation asks for it before its last micro-batch."""
    del recurse
    if not reshard_after_backward:
        _set(_around(module), reshard_after_backward=False)


def _requires_all_reduce(module: Any, requires_all_reduce: bool, *, recurse: bool = True) -> None:
    """Of all groups, likewise."""
    del recurse
    if not requires_all_reduce:
        _set(_around(module), all_reduces_each=False)


def _prefetch(module: Any, name: str, modules: Sequence[Any]) -> None:
    """Of all groups as many as of the one that asks for most."""
    around = _around(module)
    least = 1 if name == "backward_prefetched" else 0
    most = max(int(getattr(around.raysim_wrapping.fsdp, name)), len(modules), least)
    _set(around, **{name: most})


def _set(module: Any, **settings: Any) -> None:
    wrapping = module.raysim_wrapping
    module.raysim_wrapping = replace(wrapping, fsdp=replace(wrapping.fsdp, **settings))


def _set_sync(requires_gradient_sync: bool, **_others: Any) -> None:
    steps = steps_here()
    if steps is not None:
        steps.sync = requires_gradient_sync


def _no_effect(*_args: Any, **_kwargs: Any) -> None:
    """What only moves parameters."""
