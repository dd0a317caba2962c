"""Megatron's GPT against the closed forms that its authors publish."""

from __future__ import annotations

import pytest

from raysim.errors import ScenarioError
from raysim.models.huggingface import build
from raysim.models.request import Library
from raysim.models.table import Body, Model


def gpt(*, library: Library = "transformers", **changed: int) -> Model:
    config = {
        "model_type": "megatron_gpt", "hidden_size": 1024, "num_attention_heads": 16,
        "num_layers": 4, "max_position_embeddings": 2048, "padded_vocab_size": 51200, **changed,
    }  # fmt: skip
    return build(config, attention="eager", library=library)


def block(model: Model) -> Body:
    return next(layer.body for layer in model.layers if layer.kind == "block")


def kept_bytes(body: Body) -> float:
    """Of what autograd keeps of one layer, each storage once, without norms' few statistics."""
    width = {"compute": 2, "bool": 1}
    kept = {s.name: s for m in body.modules for o in m.operators for s in o.saves}
    return sum(s.numel * width[s.dtype] for s in kept.values() if s.dtype in width)


@pytest.mark.parametrize(
    ("hidden", "heads", "length"), [(1024, 16, 2048), (3072, 32, 512), (512, 8, 64)]
)
def test_a_layer_keeps_34_sbh_and_5_as2b(hidden: int, heads: int, length: int) -> None:
    """Korthikanti et al., arXiv 2205.05198, equation 1."""
    model = gpt(hidden_size=hidden, num_attention_heads=heads, max_position_embeddings=length)
    expected = length * hidden * (34 + 5 * heads * length / hidden)
    assert kept_bytes(block(model)) == expected


def test_flash_attention_keeps_no_scores() -> None:
    config = {"model_type": "megatron_gpt", "num_layers": 1, "max_position_embeddings": 4096}
    kept = kept_bytes(block(build(config, attention="flash_attention_2")))
    assert kept == 4096 * 1024 * 34


@pytest.mark.parametrize(("layers", "hidden"), [(4, 1024), (30, 3072)])
def test_parameters(layers: int, hidden: int) -> None:
    """``12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h)``, Narayanan et al., arXiv 2104.04473."""
    shape = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": 32}
    both = 51200 + 2048
    expected = 12 * layers * hidden**2 + 13 * layers * hidden + both * hidden + 2 * hidden
    assert gpt(**shape).num_parameters == expected
    assert gpt(library="megatron_core", **shape).num_parameters == expected


def test_transformer_engine_keeps_the_input_of_gelu_and_a_mask_of_dropout() -> None:
    """A layer of Megatron-core: what norms, products and cores read, and two masks, once each.

    In hidden states of 2 bytes: norms' inputs and outputs 4, projection 3, attention's output 1,
    GELU's input and output 8.
    """
    tokens, hidden = 2048, 1024
    model = gpt(library="megatron_core", num_layers=1, hidden_size=hidden)
    masks = 2 * tokens * hidden
    assert kept_bytes(block(model)) == 2 * tokens * hidden * (4 + 3 + 1 + 8) + masks


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "embedding", "rest"),
    [(6144, 32, 48, 3.1e9, 12.5e9), (18432, 96, 96, 9.4e9, 331.6e9)],
)
def test_nemotron_4_has_the_parameters_its_reports_say(
    hidden: int, layers: int, heads: int, embedding: float, rest: float
) -> None:
    """arXiv 2402.16819, table 1, and 2406.11704, table 1; squared ReLU, no gate, eight groups."""
    config = {
        "model_type": "nemotron", "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
    }  # fmt: skip
    whole = build(config, seq_len=4096, library="megatron_core").num_parameters
    tables = 2 * 256_000 * hidden
    assert tables == pytest.approx(embedding, rel=0.02)
    assert whole - tables == pytest.approx(rest, rel=0.005)
    with pytest.raises(ScenarioError, match="Megatron-core's modules only"):
        build(config, seq_len=4096)


def test_fused_kernels_move_less_than_those_of_hugging_face() -> None:
    theirs = {
        "model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 1, "n_positions": 1024,
        "activation_function": "gelu",
    }  # fmt: skip
    sides = [block(build(theirs, attention="eager")), block(gpt(max_position_embeddings=1024))]
    moved, kernels = (
        [sum(getattr(o, what) for m in body.modules for o in m.operators) for body in sides]
        for what in ("moved", "kernels")
    )
    assert moved[1] < 0.8 * moved[0]
    assert kernels[1] <= kernels[0] - 7
