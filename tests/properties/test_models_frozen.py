"""Whatever part of a model is trained: backward and memory grow with it, engines agree with it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.models.frozen import only_trained
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Model
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, llama, plan, play

WHOLE = llama(layers=3)
NAMES = [name for name, p in WHOLE.parameters() if p.tied_to is None]
CHOICES = st.sets(st.sampled_from(NAMES), min_size=1)
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ENGINES = ("zero0", "zero1", "zero2", "zero3", "ddp", "fsdp")


def kept(model: Model) -> float:
    return sum(s.numel for x in model.layers for s in x.body.saved().values())


def moved(model: Model) -> float:
    return sum(o.moved_backward or 0.0 for x in model.layers for o in x.body.operators)


@given(CHOICES, CHOICES)
def test_more_that_is_trained_costs_no_less(one: set[str], other: set[str]) -> None:
    some, more = (only_trained(WHOLE, a.__contains__) for a in (one, one | other))
    sizes = {n: p.numel for n, p in WHOLE.parameters()}
    assert some.num_trainable == sum(sizes[n] for n in one)
    assert some.num_parameters == WHOLE.num_parameters
    assert WHOLE.flops < some.step_flops <= more.step_flops <= WHOLE.step_flops
    assert kept(some) <= kept(more) <= kept(WHOLE)
    assert moved(some) <= moved(more) <= moved(WHOLE)


@given(CHOICES)
def test_layers_before_the_first_that_is_trained_have_no_backward(names: set[str]) -> None:
    model = only_trained(WHOLE, lambda n: n in names)
    trained = [any(f"{x.name}.{p.name}" in names for p in x.body.parameters) for x in model.layers]
    first = trained.index(True)
    assert [x.body.has_backward for x in model.layers] == [i >= first for i in range(len(trained))]


@settings(deadline=None, max_examples=20)
@given(names=CHOICES, engine=st.sampled_from(ENGINES), full=st.booleans())
def test_any_engine_steps_what_is_trained(names: set[str], engine: str, full: bool) -> None:
    """Faster than training all of it, and what a step leaves in memory it finds there again."""
    zero = int(engine[-1]) if engine.startswith("zero") else 0
    of = "deepspeed" if engine.startswith("zero") else engine
    checkpointing = "full" if full else "none"
    some, whole = (
        play(
            plan(model, stage=zero, engine=of, mesh=Mesh(dp=8),
                 activation_checkpointing=checkpointing),
            cluster(1),
        )
        for model in (only_trained(WHOLE, lambda n: n in names), WHOLE)
    )  # fmt: skip
    assert some.steady_step_ns <= whole.steady_step_ns
    assert some.fullest.peak_bytes <= whole.fullest.peak_bytes
    assert not some.slowest.program.step_held[-1].get("activation")


@settings(deadline=None)
@given(
    r=st.integers(1, 64),
    targets=st.sets(st.sampled_from(LINEARS), min_size=1),
    dropout=st.sampled_from((0.0, 0.1)),
)
def test_adapters_are_as_large_as_their_ranks(r: int, targets: set[str], dropout: float) -> None:
    config = LoraConfig(r=r, target_modules=tuple(sorted(targets)), lora_dropout=dropout)
    model = adapted(WHOLE, config)
    sizes = {n: p.shape for n, p in WHOLE.parameters()}
    adaptable = [s for n, s in sizes.items() if n.split(".")[-2] in targets]
    assert model.num_trainable == sum(r * (a + b) for a, b in adaptable)
    assert model.flops == WHOLE.flops + 2 * WHOLE.seq_len * model.num_trainable
