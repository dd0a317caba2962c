"""InternLM as InternEvo trains it: parameters, what is kept, what runs again, FlashAttention 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.models.table import Body, Model, Operator
from raysim.perf.compute import ComputeModel

HIDDEN, WIDTH, LAYERS, VOCAB, TOKENS = 512, 1536, 3, 1000, 256
SHAPE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": VOCAB,
}  # fmt: skip


def intern(*, selective: bool = True) -> Model:
    config = SHAPE | {"dropout_selective_checkpoint": selective}
    return build(config, seq_len=TOKENS, library="internevo")


def block(model: Model) -> Body:
    return model.layers[1].body


def named(body: Body, name: str) -> Operator:
    return next(o for o in body.operators if o.name == name)


def test_parameters_are_those_of_its_modules() -> None:
    """``Wqkv`` and ``out_proj`` have biases, the feed-forward none (``modeling_internlm.py``)."""
    attention = 4 * HIDDEN**2 + 4 * HIDDEN
    each = attention + 3 * HIDDEN * WIDTH + 2 * HIDDEN
    assert intern().num_parameters == LAYERS * each + 2 * VOCAB * HIDDEN + HIDDEN


def test_norms_run_again_in_backward_unless_the_layer_does() -> None:
    """Then no fp32 copy of their input stays, which is twice a 16-bit one."""
    again, once = block(intern()), block(intern(selective=False))
    n = TOKENS * HIDDEN
    first, second = (named(again, f"norm{i}").backward_moved for i in (1, 2))
    assert first - named(once, "norm1").backward_moved == 6 * n
    assert second - named(once, "norm2").backward_moved == (6 + 3) * n
    assert "norm1.x32" in once.saved()
    assert "norm1.x32" not in again.saved()


def test_the_host_waits_once_a_layer_for_the_largest_position() -> None:
    assert [o.name for o in block(intern()).operators if o.kind == "sync"] == [
        "mixer.rotary_emb.max"
    ]


def test_queries_keys_and_values_stay_in_one_tensor() -> None:
    """No copy splits them, and backward joins no gradients."""
    names = {o.name for o in block(intern()).operators}
    assert not {n for n in names if "split" in n or "copy" in n}
    assert block(intern()).saved()["mixer.Wqkv.out"].numel == 3 * TOKENS * HIDDEN


@pytest.mark.parametrize("backward", [False, True])
def test_flash_attention_1_runs_its_products_at_half_the_rate_of_2(backward: bool) -> None:
    gpu = catalog.gpu("A100-SXM-80GB")
    core = named(block(build(SHAPE, seq_len=8192, library="internevo")), "mixer.core")
    assert core.attention is not None
    assert core.attention.implementation == "flash_attention_1"
    second = replace(core, attention=replace(core.attention, implementation="flash_attention_2"))
    costs = ComputeModel(gpu)
    took, takes = (
        costs.operator_s(o, batch=8, dtype="bf16", backward=backward) for o in (core, second)
    )
    assert 1.5 < took / takes < 2.0  # traffic is the same
