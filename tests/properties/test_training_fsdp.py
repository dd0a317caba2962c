"""Whatever FSDP is told: memory balances, nothing stays whole, ranks agree on what they call."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.states.wrapping import Group, Tensor, make_groups, padded_numel
from tests.laws.test_training_fsdp import units
from tests.training_parts import llama, plan, programs

MODEL = llama(layers=3, hidden=40, vocab=203, seq_len=8)
TYPES = st.sampled_from([None, "bf16", "fp32"])


@st.composite
def choices(draw: st.DrawFn) -> FsdpSettings:
    """Any settings that eight ranks allow."""
    common: dict[str, Any] = {
        "param_dtype": draw(TYPES), "reduce_dtype": draw(TYPES), "wrap": draw(st.booleans()),
        "min_num_params": draw(st.sampled_from([None, 500, 5_000, 20_000])),
        "cpu_offload": draw(st.booleans()), "forward_prefetch": draw(st.booleans()),
        "sync_every_micro_batch": draw(st.booleans()),
    }  # fmt: skip
    if draw(st.booleans()):
        return FsdpSettings(
            replicas=draw(st.sampled_from([1, 2])),
            reshard_after_forward=draw(st.sampled_from([True, False, 2, 4])),
            root_reshard_after_forward=draw(st.booleans()),
            wrap_ends=draw(st.booleans()),
            **common,
        )
    strategy: Any = draw(
        st.sampled_from(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
    )
    return FsdpSettings(
        version=1,
        sharding_strategy=strategy,
        replicas=2 if strategy == "HYBRID_SHARD" else 1,
        backward_prefetch=draw(st.sampled_from(["BACKWARD_PRE", "BACKWARD_POST", None])),
        limit_all_gathers=draw(st.booleans()),
        use_orig_params=draw(st.booleans()),
        **common,
    )


@settings(max_examples=50, deadline=None)
@given(choices(), st.integers(1, 3), st.sampled_from(["none", "full"]))
def test_a_step_ends_with_shards_and_states_only(
    fsdp: FsdpSettings, accumulation: int, checkpointing: str
) -> None:
    """The ledger itself refuses to free what is not held.

    Only FSDP2's inner groups, recomputed in a larger checkpoint, leave their last all-gather output
    to the next forward: torch's final callback does not drop it.
    """
    p = plan(
        MODEL, engine="fsdp", fsdp=fsdp, precision="fp32", mesh=Mesh(dp=8),
        gradient_accumulation_steps=accumulation, activation_checkpointing=checkpointing,
    )  # fmt: skip
    (program,) = programs(p, steps=2)
    kept = set() if fsdp.cpu_offload else {"parameter", "optimizer_state"}
    inner = fsdp.version == 2 and fsdp.min_num_params is not None and checkpointing == "full"
    assert set(program.step_held[-1]) - ({"communication"} if inner else set()) == kept
    assert program.step_held[0] == program.step_held[-1]
    assert all(0 < back <= i for i, op in enumerate(program.ops) for back in op.back)


@settings(max_examples=30, deadline=None)
@given(choices())
def test_every_parameter_is_in_one_group(fsdp: FsdpSettings) -> None:
    p = plan(MODEL, engine="fsdp", fsdp=fsdp, precision="fp32", mesh=Mesh(dp=8))
    groups = make_groups(MODEL, units(p), fsdp)
    names = Counter(t.name for g in groups for t in g.tensors)
    assert names == Counter(MODEL.built)
    assert all(g.first <= g.reduce_at <= g.last for g in groups)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 9)), min_size=1), st.integers(1, 64))
def test_padding_never_loses_an_element_nor_adds_a_rank_of_rows(
    shapes: list[tuple[int, int]], ranks: int
) -> None:
    tensors = tuple(Tensor(f"p{i}", r, w, True) for i, (r, w) in enumerate(shapes))
    group = Group(name="g", tensors=tensors, first=0, last=0, reduce_at=0)
    whole = sum(t.numel for t in tensors)
    padded = padded_numel(tensors, ranks)
    assert whole <= padded < whole + ranks * sum(t.row_numel for t in tensors)
    for aligned in (0, 4, 8):
        flat = group.flat_numel(ranks, aligned=aligned)
        assert flat % ranks == 0
        assert whole <= flat < whole + ranks + aligned * len(tensors)
