"""Adapters and frozen weights against PEFT and autograd on the CPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raysim.models.frozen import only_trained
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Model

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from raysim.tracing.module import trace  # noqa: E402
from tests.real.models_reference import (  # noqa: E402
    config,
    measure,
    partly_trained,
    torch,
    transformers,
)
from tests.real.test_models_autograd import (  # noqa: E402
    LAYERS,
    MODELS,
    NO_SDPA,
    NOT_FUSED_ON_CPU,
    TOKENS,
    operators,
    predict,
    saved_bytes,
)

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

TARGETS: dict[str, Any] = {
    "llama": ["q_proj", "v_proj"],
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen3": "all-linear",
    "gemma": ["q_proj", "v_proj"],
    "phi3": "all-linear",
    "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt_neox": ["query_key_value"],
    "opt": ["q_proj", "v_proj", "fc1", "fc2"],
    "bloom": ["query_key_value"],
    "falcon": "all-linear",
    "bert": ["query", "value"],
    "t5": ["q", "v"],
    "vit": ["q_proj", "v_proj"],
}
ROWS = {"vit": 2 * 65}


def attention_of(model_type: str) -> str:
    return "eager" if model_type in (*NO_SDPA, *NOT_FUSED_ON_CPU) else "sdpa"


def both(
    model_type: str, adapter: dict[str, Any], count: int = 2, attention: str = ""
) -> tuple[Model, Any]:
    """What raysim says of the model, and what it does."""
    architecture, values = MODELS[model_type]
    values = {
        "model_type": model_type, **values, LAYERS.get(model_type, "num_hidden_layers"): count,
    }  # fmt: skip
    attention = attention or attention_of(model_type)
    model = predict(values, architecture, attention)
    if "train" in adapter:
        ours = only_trained(model, lambda n: re.search(adapter["train"], n) is not None)
    else:
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in adapter.items()}
        ours = adapted(model, LoraConfig(**given))
    real = measure(
        values, architecture, attention=attention, tokens=TOKENS, rows=ROWS.get(model_type),
        adapter=adapter,
    )  # fmt: skip
    return ours, real


@pytest.mark.parametrize("model_type", TARGETS)
def test_parameters_are_those_of_peft(model_type: str) -> None:
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **values}
    fields = {"r": 4, "target_modules": TARGETS[model_type]}
    real = partly_trained(getattr(transformers, architecture)(config(values, "eager")), fields)
    expected = {
        name.removeprefix("base_model.model."): (tuple(p.shape), p.requires_grad)
        for name, p in real.named_parameters()
    }
    targets = fields["target_modules"]
    if isinstance(targets, list):
        fields["target_modules"] = tuple(targets)
    ours = adapted(predict(values, architecture, "eager"), LoraConfig(**fields))
    found = {name: (p.shape, p.trainable) for name, p in ours.parameters() if p.tied_to is None}
    assert found == expected
    trained, every = real.get_nb_trainable_parameters()
    assert (ours.num_trainable, ours.num_parameters) == (trained, every)


@pytest.mark.parametrize("model_type", TARGETS)
def test_saved_bytes_beside_adapters(model_type: str) -> None:
    ours, real = both(model_type, {"r": 8, "target_modules": TARGETS[model_type]})
    # A decoder's first block has inputs that require no gradient; a chain of layers does not know.
    assert saved_bytes(ours) == pytest.approx(
        real.saved_bytes, rel=0.08 if model_type == "t5" else 0.02
    )


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_saved_bytes_with_dropout_before_adapters(model_type: str) -> None:
    fields = {"r": 8, "target_modules": TARGETS[model_type], "lora_dropout": 0.1}
    ours, real = both(model_type, fields)
    assert saved_bytes(ours, mask_bytes=2) == pytest.approx(real.saved_bytes, rel=0.02)


@pytest.mark.parametrize("model_type", ["llama", "opt"])
def test_saved_bytes_of_a_frozen_trunk(model_type: str) -> None:
    """Only the head, or the last block and the head."""
    for names in (r"lm_head|embed_tokens", r"layers\.1\.|lm_head"):
        ours, real = both(model_type, {"train": names})
        assert saved_bytes(ours) == pytest.approx(real.saved_bytes, rel=0.02)


@pytest.mark.parametrize("model_type", [m for m in TARGETS if m not in ("t5", "bloom")])
def test_kernels_and_traffic_of_an_adapted_layer(model_type: str) -> None:
    fields = {"r": 8, "target_modules": TARGETS[model_type]}
    predicted, real = [], []
    for count in (2, 4):
        ours, seen = both(model_type, fields, count, attention="eager")
        every = operators(ours)
        predicted.append((
            sum(o.kernels for o in every), sum(o.kernels_backward or 0 for o in every),
            sum(o.moved for o in every), sum(o.moved_backward or 0.0 for o in every),
        ))  # fmt: skip
        kinds = ("forward", "backward")
        real.append((*(seen.kernels[k] for k in kinds), *(seen.moved[k] for k in kinds)))
    mine = [b - a for a, b in zip(*predicted, strict=True)]
    theirs = [b - a for a, b in zip(*real, strict=True)]
    assert mine[0] == pytest.approx(theirs[0], rel=0.09)
    assert mine[1] == pytest.approx(theirs[1], rel=0.12)
    assert mine[2] == pytest.approx(theirs[2], rel=0.07)
    assert mine[3] == pytest.approx(theirs[3], rel=0.12)


def traced(model_type: str, adapter: dict[str, Any]) -> Model:
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **values}
    made = getattr(transformers, architecture)(config(values, attention_of(model_type)))
    ids = torch.randint(0, 400, (2, TOKENS))
    given = {"input_ids": ids, "labels": ids, "use_cache": False}
    return trace(partly_trained(made.to(torch.bfloat16), adapter), given)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "opt"])
def test_traced_adapters_are_the_table_s(model_type: str) -> None:
    """A script's own module with PEFT's layers in it, on shapes alone."""
    fields = {"r": 8, "target_modules": TARGETS[model_type]}
    found, (ours, _) = traced(model_type, fields), both(model_type, fields)
    assert (found.num_trainable, found.num_parameters) == (ours.num_trainable, ours.num_parameters)
    assert (found.flops, found.step_flops) == (ours.flops, ours.step_flops)
    assert saved_bytes(found) == pytest.approx(saved_bytes(ours), rel=0.02)


def test_a_traced_trunk_that_is_frozen_has_no_backward() -> None:
    model = traced("opt", {"train": "lm_head|embed_tokens"})
    assert [x.body.has_backward for x in model.layers if x.kind == "block"] == [True, True]
    values = MODELS["llama"][1]
    model = traced("llama", {"train": "lm_head"})
    *trunk, head = model.layers
    assert not any(x.body.has_backward for x in trunk)
    assert [o.gradients for o in head.body.operators if o.gemm] == ["weights"]
    assert model.num_trainable == values["vocab_size"] * values["hidden_size"]
