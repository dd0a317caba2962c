"""What a checkpointed layer keeps besides its input, and what it runs again.

Plain activation checkpointing keeps nothing and runs every operator again; torch's non-reentrant
one stops as soon as all that backward needs is there (``set_checkpoint_early_stop``), which is
before the last product: its input is saved, its output is nobody's.

Selective checkpointing by operator is torchtitan's (``selective_ac_option = "op"``,
``create_selective_checkpoint_contexts``): outputs of attention cores stay and those of every second
product, the first, third, fifth of a layer; everything else runs again. Under tensor parallelism
what the reduce-scatter behind a row-parallel product gives stays too. ``torch.compile`` drops the
output of the layer's last product, which no backward reads, and products whose reduced output
stays.

Simplification: eager torch runs a row-parallel product again whose reduced output stays; here
nothing does. What its Python mode costs the host per operator is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from raysim.models.table import Operator
from raysim.training.layers.sharding import Exchange

Checkpointing = Literal["none", "selective", "op", "full"]
"""``full``: every block is recomputed (Hugging Face's gradient checkpointing); ``selective``:
attention cores only (Megatron's ``--recompute-granularity selective``); ``op``: torchtitan's."""


MODULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "moe_act": (("mlp.experts.swiglu",), ("mlp.experts.activated",)),
    "layernorm": (("pre_mlp_layernorm",), ("pre_mlp_layernorm.out",)),
    "mla_up_proj": (
        (
            *(f"self_attention.linear_{x}_up_proj{part}"
              for x in ("q", "kv") for part in (".layer_norm", "")),
            "self_attention.query_rope", "self_attention.key_value_rope",
        ),
        (
            *(f"self_attention.linear_{x}_up_proj.{tensor}"
              for x in ("q", "kv") for tensor in ("ln_out", "rsigma", "out")),
            "self_attention.key", "self_attention.value",
        ),
    ),
}  # fmt: skip
"""Megatron-core's ``--recompute-modules`` beside ``core_attn``: operators that run again, and the
tensors that are not kept. Norms that Transformer Engine fuses into a projection are not modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The second run of a unit's forward, inside its layer's backward."""

    seconds: float
    host_s: float
    flops: float
    after: Sequence[Exchange]
    """What peers exchange behind it."""
    hooks_s: float = 0.0
    """The host's, each of the three times that a non-reentrant checkpoint hooks what is saved."""
    held: tuple[int, ...] = ()
    """Bytes of each output that stayed from the first run."""

    @property
    def held_bytes(self) -> int:
        """All of them."""
        return sum(self.held)


@dataclass(frozen=True, slots=True)
class Kept:
    """Of a layer, by operators' names: whose outputs stay, and who does not run again."""

    outputs: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()


def kept(
    operators: Sequence[Operator],
    checkpointing: Checkpointing,
    *,
    reentrant: bool,
    compiled: bool,
    tensor_parallel: bool,
) -> Kept:
    """What a layer of these operators, in forward order, keeps and skips."""
    products = [o for o in operators if _is_product(o)]
    unreached = set[str]() if reentrant else {o.name for o in _unreached(operators)}
    if all(o.name in unreached for o in products):
        unreached = set()  # a layer of one product is but a part of what is checkpointed
    if checkpointing != "op":
        return Kept(skipped=frozenset(unreached))
    last = {products[-1].name} if products else set[str]()
    stay = {o.name for o in products[::2]}
    stay |= {o.name for o in operators if o.attention is not None}
    if tensor_parallel:
        stay |= {o.name for o in products if o.split == "row"}
    return Kept(
        outputs=frozenset(stay - last if compiled else stay), skipped=frozenset(stay | unreached)
    )


def _is_product(o: Operator) -> bool:
    return o.gemm is not None and o.attention is None


def _unreached(operators: Sequence[Operator]) -> Iterator[Operator]:
    """What comes after the last tensor that backward needs.

    A product keeps its input before it runs; what keeps its output or a mask must run to make it.
    """
    for o in reversed(operators):
        if not o.saves or _is_product(o):
            yield o
        if o.saves:
            return
