"""Adapters, frozen weights and 4-bit weights in layer tables."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.models.four_bit import in_four_bits, stored_bytes
from raysim.models.frozen import only_trained
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Model
from tests.training_parts import llama

HIDDEN, LAYERS = 256, 4
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def with_lora(**fields: Any) -> Model:
    return adapted(llama(), LoraConfig(**{"r": 8, "target_modules": ATTENTION} | fields))


def modules(model: Model) -> list[str]:
    return [f"{x.name}.{m.name}" for x in model.layers for m in x.body.modules if m.parameters]


def test_adapters_alone_are_trained() -> None:
    model, plain = with_lora(), llama()
    assert model.num_trainable == LAYERS * len(ATTENTION) * 8 * 2 * HIDDEN
    assert model.num_parameters == plain.num_parameters + model.num_trainable
    trained = {n for n, p in model.parameters() if p.trainable}
    assert all(".lora_A.default.weight" in n or ".lora_B.default.weight" in n for n in trained)


def test_a_step_is_two_thirds_of_full_training_and_the_adapters() -> None:
    model, plain = with_lora(), llama()
    adapters = model.flops - plain.flops
    assert adapters == pytest.approx(2 * 128 * model.num_trainable)
    cores = sum(o.flops for x in plain.layers for o in x.body.operators if o.attention)
    first = llama().layers[1].body  # whose own products have inputs that require no gradient
    spared = sum(o.flops for o in first.operators if o.name.split(".")[-1] in ATTENTION[:3])
    products = plain.flops - cores
    expected = 2 * products + 3 * cores + 3 * adapters - spared - 3 * 2 * 128 * 8 * HIDDEN
    assert model.step_flops == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"target_modules": "all-linear"}, 7 * LAYERS),
        ({"target_modules": r".*\.[23]\.mlp\.(up|down)_proj"}, 2 * 2),
        ({"target_modules": ("q_proj",), "layers_to_transform": (0, 3)}, 2),
        ({"target_modules": ("q_proj",), "layers_to_transform": (1,), "layers_pattern": ("h",)}, 0),
        ({"target_modules": None}, 2 * LAYERS),  # llama's default: q_proj, v_proj
        ({"exclude_modules": ("o_proj", "k_proj")}, 2 * LAYERS),
    ],
)
def test_which_modules_get_one(fields: dict[str, Any], count: int) -> None:
    if not count:
        with pytest.raises(ValueError, match="not found"):
            with_lora(**fields)
        return
    assert sum(name.endswith(".lora_A") for name in modules(with_lora(**fields))) == count


def test_ranks_by_pattern() -> None:
    model = with_lora(rank_pattern={"v_proj": 32, r"layers\.0\.self_attn\.q_proj": 4})
    ranks = {n: p.shape[0] for n, p in model.parameters() if "lora_A" in n}
    assert ranks["model.layers.0.self_attn.q_proj.lora_A.default.weight"] == 4
    assert ranks["model.layers.1.self_attn.q_proj.lora_A.default.weight"] == 8
    assert ranks["model.layers.3.self_attn.v_proj.lora_A.default.weight"] == 32


def test_modules_to_save_are_trained_copies() -> None:
    model = with_lora(modules_to_save=("embed_tokens", "lm_head"))
    trained = {n: p.numel for n, p in model.parameters() if p.trainable and "lora" not in n}
    assert trained == {
        "model.embed_tokens.modules_to_save.default.weight": 1024 * HIDDEN,
        "lm_head.modules_to_save.default.weight": 1024 * HIDDEN,
    }
    assert model.num_parameters == llama().num_parameters + model.num_trainable


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_modules": ("query",)}, "target_modules query not found in llama"),
        ({"target_modules": ("embed_tokens",)}, "is a Embedding; adapters are simulated on Linear"),
    ],
)
def test_what_takes_no_adapter(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_lora(**fields)


def test_nothing_before_the_first_trained_layer_has_a_backward() -> None:
    model = only_trained(llama(), lambda n: n == "lm_head.weight")
    *trunk, head = model.layers
    assert not any(x.body.has_backward for x in trunk)
    assert sum(s.numel for x in trunk for s in x.body.saved().values()) == 0
    assert [o.gradients for o in head.body.operators if o.gemm] == ["weights"]
    assert model.step_flops == model.flops + head.body.flops


def test_an_embedding_that_requires_gradients_makes_the_first_block_like_the_others() -> None:
    plain = adapted(llama(), LoraConfig(target_modules=ATTENTION))
    entered = adapted(llama(), LoraConfig(target_modules=ATTENTION), checkpointed=True)
    first, second = (x.body for x in plain.layers[1:3])
    assert first is not second
    assert len({id(x.body) for x in entered.layers[1:5]}) == 1
    assert not entered.layers[0].body.has_backward


def test_four_bits_are_dequantized_for_every_product() -> None:
    model = in_four_bits(llama(), double=True)
    linear = [p for n, p in model.parameters() if "proj" in n]
    assert {p.stored_bytes for p in linear} == {stored_bytes(double=True)}
    assert stored_bytes(double=True) == pytest.approx(0.5 + 8 / 64 / 8 + 32 / 64 / 256 / 8)
    others = {n for n, p in model.parameters() if p.stored_bytes is None}
    assert {n.split(".")[-2] for n in others} == {
        "embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm",
    }  # fmt: skip
    block = model.layers[1].body
    casts = [o for o in block.operators if o.name.endswith(".dequantize")]
    assert len(casts) == 7
    assert casts[0].moved_fixed == casts[0].moved_fixed_backward > HIDDEN * HIDDEN


def test_layers_to_leave_as_they_are() -> None:
    model = in_four_bits(llama(), double=False, skipped=("lm_head", "layers.0.mlp"))
    kept = {n for n, p in model.parameters() if p.stored_bytes is None and "_proj" in n}
    assert kept == {f"model.layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}


def test_an_adapter_on_the_head() -> None:
    """What runs beside a head under its name, the loss, gets none."""
    model = with_lora(target_modules=(*ATTENTION, "lm_head"))
    trained = {n: p.numel for n, p in model.parameters() if p.trainable and "lm_head" in n}
    assert trained == {
        "lm_head.lora_A.default.weight": 8 * HIDDEN, "lm_head.lora_B.default.weight": 8 * 1024,
    }  # fmt: skip
    names = [m.name for m in model.layers[-1].body.modules]
    assert names[:3] == ["base_layer", "lora_dropout", "lora_A"]


def test_inputs_that_old_bitsandbytes_kept() -> None:
    """Of frozen products nothing is kept for a weight's gradient, but what was by mistake."""

    def kept(*, old: bool) -> dict[str, float]:
        made = adapted(
            in_four_bits(llama(), double=False, keeps_inputs=old),
            LoraConfig(r=8, target_modules=("q_proj",)),
        )
        return {name: s.numel for name, s in made.layers[2].body.saved().items()}

    new, old = kept(old=False), kept(old=True)
    more = {name: numel for name, numel in old.items() if numel > new.get(name, 0.0)}
    # what up and gate read, what down reads; q, k and v's input lora_A keeps too
    assert sorted(more.values()) == [128 * HIDDEN, 128 * 4 * HIDDEN]
