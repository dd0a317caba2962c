"""DeepSpeed's AutoTP: linear layers shared out over ranks, as transformers' plan or the JSON says.

Real counterparts: ``module_inject/{auto_tp,layers,tp_plan_converter}.py`` and ``runtime/engine.py``
(``_apply_autotp_partitioning``) of 0.19. The same autograd functions run on shapes: a rank's model
has its own rows or columns of a weight, and what it exchanges with its peers the tracer hears.

Not modelled: uneven parts, weights of more than two dimensions, models without a plan, whose layers
DeepSpeed guesses (refused); that the first batch is compared over the peers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from raysim.rayapi.deepspeed import groups
from raysim.rayapi.deepspeed.autotp_specs import Spec, of_json, of_plan, plan_of
from raysim.rayapi.deepspeed.shared_layers import Copied, LinearAllreduce, LinearLayer, Shared
from raysim.rayapi.deepspeed.vocab_parallel import (
    VocabParallelCausalLMLoss,
    VocabParallelEmbedding,
    VocabParallelLinear,
)
from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError

_KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", "kv_n_heads",
    "num_attention_heads", "n_heads", "attention_heads",
)  # fmt: skip
_HEADS = ("lm_head", "embed_out")
_BY_WORDS = (VocabParallelLinear, VocabParallelEmbedding)
_INSTEAD = "tensor_parallel.partition_config with patterns of whole linear layers"
_COUNTS = (
    "n_heads", "inner_dim", "num_heads", "num_kv", "num_attention_heads", "num_attn_heads",
    "all_head_size", "embed_dim", "hidden_size", "num_key_value_heads", "num_kv_heads",
    "kv_n_heads", "d_model", "num_attention_heads_per_partition",
    "num_multi_query_groups_per_partition", "hidden_size_per_partition",
)  # fmt: skip
"""Attributes of modules that are a rank's own afterwards (``update_mp_params``)."""


def tp_model_init(model: Any, tp_size: int, dtype: torch.dtype, **_more: Any) -> Any:
    """``deepspeed.tp_model_init``: noted; ``deepspeed.initialize`` shares the layers out."""
    del dtype
    worker = worker_here()
    if worker is not None:
        _noted(worker)["tp_size"] = tp_size
    return model


def _noted(worker: Any) -> dict[str, int]:
    found: dict[str, int] = worker.globals.setdefault(tp_model_init, {})
    return found


def degree(said: dict[str, Any]) -> int:
    """Ranks that share each layer, by the JSON or ``tp_model_init``; 1: none do.

    Raises
    ------
    ValueError
        They differ, in DeepSpeed's words.
    """
    worker = worker_here()
    called = 0 if worker is None else _noted(worker).get("tp_size", 0)
    config = int(said.get("tensor_parallel", {}).get("autotp_size") or 0)
    if called and config and called != config:
        raise ValueError(
            f"Conflicting tensor_parallel.autotp_size in config ({config}) and tp_model_init "
            f"({called})."
        )
    return max(1, called, config)


def parallelized(model: nn.Module, said: dict[str, Any], ways: int) -> None:
    """Share the layers of a model out over so many neighbours, in place.

    Raises
    ------
    NotEmulatedError
        Layers that would not be halved evenly, or are fused, or that no plan names.
    """
    groups._init_tp_mesh_device(ways)  # noqa: SLF001  (DeepSpeed's name)
    config = said.get("tensor_parallel", {})
    said_here = of_json(config)
    if config.get("tp_overlap_comm"):
        raise NotEmulatedError("tensor_parallel.tp_overlap_comm", "false")
    plan = plan_of(model)
    specs = said_here or of_plan(plan)
    if not specs:
        raise NotEmulatedError("AutoTP of a model that has no tp_plan of transformers", _INSTEAD)
    asked = config.get("vocab_parallel_lm_head")
    by_plan = not said_here and "embedding_rowwise" in plan.values()
    _Sharer(model, specs, ways).share(asked, by_plan=by_plan)


class _Sharer:
    """One model's layers, found by name."""

    def __init__(self, model: nn.Module, specs: list[Spec], ways: int) -> None:
        config: Any = getattr(model, "config", None)
        self.model, self.specs, self.ways = model, specs, ways
        self.kind = str(getattr(config, "model_type", "")).lower()
        text = getattr(config, "text_config", None) or config
        heads = (getattr(text, name, None) for name in _KV_HEADS)
        self.kv_heads = next((n for n in heads if n is not None), ways)
        self.group = groups.get_tensor_model_parallel_group()

    def share(self, asked: bool | None, *, by_plan: bool) -> None:
        """Its linear layers, numbers of heads and gradients of what stays whole.

        ``asked``: a head that is divided by vocabulary; None: where it is tied, ``by_plan``.
        """
        if self.kv_heads % self.ways:
            raise NotEmulatedError(
                f"autotp_size {self.ways} over {self.kv_heads} heads of keys", "one that divides it"
            )
        self._divide_vocabulary(asked, by_plan=by_plan)
        whole = self._tied_heads()
        for path, module in list(self.model.named_modules()):
            for name, layer in list(module.named_children()):
                full = f"{path}.{name}" if path else name
                spec = self._spec(f"{full}.weight")
                if spec is not None and full not in whole and not isinstance(layer, _BY_WORDS):
                    self._replace(module, name, layer, spec)
        for module in self.model.modules():
            shared = any(isinstance(m, Shared) for m in module.modules())
            if shared and module is not self.model and not isinstance(module, Shared):
                for name in _COUNTS:
                    if isinstance(getattr(module, name, None), int):
                        setattr(module, name, getattr(module, name) // self.ways)

    def _spec(self, name: str) -> Spec | None:
        return next((spec for spec in self.specs if spec.matches(name, self.kind)), None)

    def _divide_vocabulary(self, asked: bool | None, *, by_plan: bool) -> None:
        """Of a head, with the embeddings that it is tied to, and the model's loss."""
        model: Any = self.model
        heads = [(n, m) for n, m in model.named_modules()
                 if n.rpartition(".")[2] in _HEADS and isinstance(m, nn.Linear)]  # fmt: skip
        for path, head in heads:
            tied = [(p, n, m) for p in model.modules() for n, m in p.named_children()
                    if isinstance(m, nn.Embedding) and m.weight is head.weight]  # fmt: skip
            if asked is False or not (asked or (tied and by_plan)):
                continue
            self._divides(head.weight, 0, path)
            parent = model.get_submodule(path.rpartition(".")[0])
            cut = VocabParallelLinear(head, self.group, self.ways, 0, gathers=False)
            setattr(parent, path.rpartition(".")[2], cut)
            for owner, name, embedding in tied:
                setattr(owner, name, VocabParallelEmbedding(embedding, cut))
            model.loss_function = VocabParallelCausalLMLoss(cut)
            return
        if asked:
            raise ValueError(
                "vocab_parallel_lm_head requires a supported nn.Linear named 'lm_head' or "
                "'embed_out'"
            )

    def _divides(self, weight: torch.Tensor, dim: int, name: str, spec: Spec | None = None) -> None:
        rows = weight.shape[dim]
        pieces = (rows,) if spec is None or dim else spec.pieces(rows)
        if sum(pieces) != rows or any(n % self.ways for n in pieces):
            raise NotEmulatedError(
                f"AutoTP of {name}: {' + '.join(map(str, pieces))} of {rows} rows over "
                f"{self.ways} ranks", "an autotp_size that divides them",
            )  # fmt: skip

    def _tied_heads(self) -> set[str]:
        """Gathered layers that share an embedding's weight: both stay whole."""
        embedded = {
            id(m.weight): name for name, m in self.model.named_modules()
            if isinstance(m, nn.Embedding)
        }  # fmt: skip
        found: set[str] = set()
        for name, module in self.model.named_modules():
            tied = embedded.get(id(getattr(module, "weight", None)))
            spec = self._spec(f"{name}.weight")
            if tied is not None and name != tied and spec is not None and spec.gathers:
                found |= {name, tied}
        return found

    def _replace(self, parent: nn.Module, name: str, layer: Any, spec: Spec) -> None:
        if spec.sums_gradients:
            layer.__class__ = _summing(type(layer), self.group)
        if spec.way == "skip":
            return
        if not isinstance(layer, nn.Linear) or (name in _HEADS and spec.way == "row"):
            raise NotEmulatedError(f"AutoTP by {spec.way} of {name}, a {type(layer).__name__}",
                                   _INSTEAD)  # fmt: skip
        dim = 0 if spec.way == "column" else 1
        self._divides(layer.weight, dim, name, spec)
        kind = LinearLayer if dim == 0 else LinearAllreduce
        setattr(parent, name, kind(layer, self.group, self.ways, dim, gathers=spec.gathers))


def _summing(kind: Any, group: Any) -> type:
    """A module's class, whose weights' gradients are summed over the parts as they are made."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = dict(self.named_parameters(recurse=False))
        for name, p in own.items():
            del self._parameters[name]  # a plain attribute meanwhile
            setattr(self, name, Copied.apply(group, p))  # type: ignore[no-untyped-call]
        try:
            return unbound(self, *args, **kwargs)
        finally:
            for name, p in own.items():
                delattr(self, name)
                self.register_parameter(name, p)

    unbound: Any = kind.forward
    return type(kind.__name__, (kind,), {"forward": forward})
