"""Which layers AutoTP divides which way: transformers' plans, the JSON's patterns, presets.

Real counterparts: ``module_inject/{autotp_config,tp_plan_converter}.py`` and ``_get_hf_tp_plan``
(``runtime/tensor_parallel/config.py``) of DeepSpeed 0.19.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

_STYLES = {
    "colwise": ("column", False), "colwise_rep": ("column", True),
    "colwise_gather_output": ("column", True), "rowwise": ("row", False),
    "embedding_rowwise": ("skip", False), "replicated_with_grad_allreduce": ("skip", True),
}  # fmt: skip
"""Of transformers' plans: which way, and whether outputs are gathered or gradients are summed."""


@dataclass(frozen=True, slots=True)
class Spec:
    """``TPLayerSpec``, of whole weights."""

    patterns: tuple[str, ...]
    way: str
    gathers: bool = False
    sums_gradients: bool = False
    kinds: tuple[str, ...] = ()
    parts: int | tuple[int, ...] = 1
    """Fused weights in one, each of which is divided: how many, or rows of each."""

    def pieces(self, rows: int) -> tuple[int, ...]:
        """Of so many rows, what is divided each by itself."""
        if isinstance(self.parts, tuple):
            return self.parts
        return (rows,) if rows % self.parts else (rows // self.parts,) * self.parts

    def matches(self, name: str, kind: str) -> bool:
        """Of a parameter, of a model of some type."""
        known = not self.kinds or kind in self.kinds
        return known and any(re.match(p, name) for p in self.patterns)


def plan_of(model: Any) -> dict[str, str]:
    """Of its config, its class and itself, merged (``_get_hf_tp_plan``)."""
    plans = (
        getattr(getattr(model, "config", None), "base_model_tp_plan", None),
        getattr(type(model), "_tp_plan", None), vars(model).get("_tp_plan"),
    )  # fmt: skip
    merged: dict[str, str] = {}
    known: set[str] = set()
    for plan in plans:
        for pattern, style in plan.items() if isinstance(plan, dict) else ():
            own = pattern.removeprefix("model.")
            if pattern.startswith("model.") and own in known:
                continue
            merged[pattern] = style
            known.add(own)
    return merged


def of_plan(plan: dict[str, str]) -> list[Spec]:
    """As ``TPPlanConverter`` reads it, whose words refuse other styles."""
    other = sorted({style for style in plan.values() if style.lower() not in _STYLES})
    if other:
        raise ValueError(
            f"HuggingFace tp_plan contains unsupported partition style(s): {other}. Applying only "
            "the supported entries could shard one half of a column/row pair, so the plan is "
            "rejected as a whole. Provide an explicit 'tensor_parallel.partition_config' for this "
            "model instead."
        )
    specs = []
    for pattern, style in plan.items():
        named = ".*" + pattern.replace(".", r"\.").replace("*", ".*")
        named += "$" if named.endswith(r"\.weight") else r"\.weight$"
        way, more = _STYLES[style.lower()]
        specs.append(Spec((named,), way, more and way == "column", more and way == "skip"))
    return specs


def of_json(config: dict[str, Any]) -> list[Spec]:
    """``AutoTPConfig.from_dict``; what is said goes before a preset.

    Raises
    ------
    NotEmulatedError
        Weights that are cut another way than by whole rows or columns.
    """
    own = config.get("partition_config") or {}
    specs = [
        Spec(
            tuple(each.get("patterns", [])), str(each.get("partition_type", "column")).lower(),
            bool(each.get("gather_output")), bool(each.get("grad_allreduce")),
            tuple(str(kind).lower() for kind in each.get("model_types") or ()), _parts(each),
        )
        for each in own.get("layer_specs", [])
    ]  # fmt: skip
    preset = PRESETS.get(str(config.get("preset_model") or "").lower(), ())
    if own and not own.get("use_default_specs", True):
        return specs
    return specs + [Spec((rf".*\.{name}\.weight$",), way, parts=n) for name, way, n in preset]


def _parts(said: dict[str, Any]) -> int | tuple[int, ...]:
    """Of a two-dimensional ``shape``."""
    shape, row = said.get("shape"), said.get("partition_type") == "row"
    dim = said.get("partition_dim")
    if dim not in {None, int(row)} or (shape is not None and (len(shape) != 2 or row)):
        raise NotEmulatedError(
            f"shape {shape} and partition_dim {dim} of tensor_parallel's layer_specs",
            "fused rows: [3, -1], [[4096, 1024, 1024], -1]",
        )
    first = 1 if shape is None else shape[0]
    if isinstance(first, list | tuple):
        return tuple(int(rows) for rows in first)
    return max(1, int(first))


_LLAMA = (
    (r"self_attn\.o_proj", "row", 1), (r"self_attn\.[qkv]_proj", "column", 1),
    (r"mlp\.down_proj", "row", 1), (r"mlp\.(up|gate)_proj", "column", 1),
)  # fmt: skip
PRESETS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "llama": _LLAMA, "qwen2": _LLAMA,
    "bloom": (
        (r"self_attention\.dense", "row", 1), (r"self_attention\.query_key_value", "column", 1),
        (r"mlp\.dense_4h_to_h", "row", 1), (r"mlp\.dense_h_to_4h", "column", 1),
    ),
    "chatglm": (
        (r"self_attention\.dense", "row", 1), (r"self_attention\.query_key_value", "column", 3),
        (r"mlp\.dense_4h_to_h", "row", 1), (r"mlp\.dense_h_to_4h", "column", 2),
    ),
    "mixtral": (
        *_LLAMA[:2], (r"block_sparse_moe\.experts\.\d+\.w2", "row", 1),
        (r"block_sparse_moe\.experts\.\d+\.w[13]", "column", 1),
        (r"block_sparse_moe\.gate", "skip", 1),
    ),
    "deepseek_v2": (
        _LLAMA[0], (r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)", "skip", 1),
        (r"self_attn\.(q_b_proj|kv_b_proj)", "column", 1),
        (r"mlp\.(experts\.\d+|shared_experts)\.down_proj", "row", 1),
        (r"mlp\.(experts\.\d+|shared_experts)\.(up|gate)_proj", "column", 1),
        (r"mlp\.gate", "skip", 1),
    ),
    "phi3": (
        _LLAMA[0], (r"self_attn\.qkv_proj", "column", 3), _LLAMA[2],
        (r"mlp\.gate_up_proj", "column", 2),
    ),
}  # fmt: skip
"""``AutoTPPresets``: names of layers, which way, fused weights in each."""
