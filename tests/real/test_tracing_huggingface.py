"""Traced Hugging Face models against the tables read from the same configs."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from raysim.hardware import catalog  # noqa: E402
from raysim.models import huggingface  # noqa: E402
from raysim.models.table import FIXED_DTYPE_BYTES, Model  # noqa: E402
from raysim.perf.compute import ComputeModel  # noqa: E402
from raysim.tracing import trace  # noqa: E402

BATCH, TOKENS = 2, 64
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 128,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 4, "vocab_size": 512,
    "n_positions": 128, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 200, "vocab_size": 512,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 200, "image_size": 32, "patch_size": 4,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
    "vocab_size": 512, "decoder_start_token_id": 0,
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 16}
CASES = [
    (LLAMA, "LlamaForCausalLM", "sdpa"),
    (LLAMA, "LlamaForCausalLM", "eager"),
    (LLAMA | {"tie_word_embeddings": True}, "LlamaForCausalLM", "sdpa"),
    (MISTRAL, "MistralForCausalLM", "sdpa"),
    (GPT2, "GPT2LMHeadModel", "sdpa"),
    (GPT2, "GPT2LMHeadModel", "eager"),
    (BERT, "BertForMaskedLM", "sdpa"),
    (BERT, "BertForMaskedLM", "eager"),
    (VIT, "ViTForImageClassification", "sdpa"),
    (T5, "T5ForConditionalGeneration", "eager"),
]
NAMES = [f"{architecture}-{attention}" for _, architecture, attention in CASES]
NAMES[2] += "-tied"


def on_meta(values: dict[str, Any], architecture: str, attention: str) -> Any:
    transformers.logging.set_verbosity_error()
    values = dict(values)
    config = transformers.CONFIG_MAPPING[values.pop("model_type")](**values)
    config._attn_implementation = attention
    with torch.device("meta"):
        return getattr(transformers, architecture)(config).to(torch.bfloat16)


def inputs(values: dict[str, Any], tokens: int = TOKENS) -> dict[str, Any]:
    if values["model_type"] == "vit":
        pixels = torch.zeros(BATCH, 3, 32, 32, dtype=torch.bfloat16)
        return {"pixel_values": pixels, "labels": torch.zeros(BATCH, dtype=torch.long)}
    ids = torch.zeros(BATCH, tokens, dtype=torch.long)
    cached = {} if values["model_type"] == "bert" else {"use_cache": False}
    return {"input_ids": ids, "labels": ids, **cached}


def read(values: dict[str, Any], architecture: str, attention: Any, tokens: int = TOKENS) -> Model:
    length = None if values["model_type"] == "vit" else tokens
    config = values | {"architectures": [architecture]}
    return huggingface.build(config, seq_len=length, attention=attention)


def saved_bytes(model: Model) -> float:
    width = {"compute": 2, **FIXED_DTYPE_BYTES}
    return sum(
        s.numel * width[s.dtype] for layer in model.layers for s in layer.body.saved().values()
    )


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def pair(request: pytest.FixtureRequest) -> tuple[Model, Model]:
    values, architecture, attention = request.param
    module = on_meta(values, architecture, attention)
    return trace(module, inputs(values)), read(values, architecture, attention)


def test_parameters_are_equal(pair: tuple[Model, Model]) -> None:
    traced, table = pair
    described = [{n: (p.shape, p.tied_to) for n, p in m.parameters()} for m in pair]
    assert described[0] == described[1]
    assert traced.num_parameters == table.num_parameters


def test_flops_are_equal(pair: tuple[Model, Model]) -> None:
    traced, table = pair
    assert traced.flops == pytest.approx(table.flops, rel=1e-3)


def test_saved_bytes_agree(pair: tuple[Model, Model]) -> None:
    traced, table = pair
    assert saved_bytes(traced) == pytest.approx(saved_bytes(table), rel=0.05)


def test_blocks_are_the_same_layers(pair: tuple[Model, Model]) -> None:
    traced, table = pair
    blocks = [
        [(layer.name, layer.cls, layer.output) for layer in m.layers if layer.kind == "block"]
        for m in pair
    ]
    assert blocks[0] == blocks[1]
    assert traced.vocab_size == table.vocab_size
    assert traced.sample_unit == table.sample_unit
    if table.model_type != "t5":  # its two stacks differ in length of input
        assert (traced.seq_len, traced.hidden_size) == (table.seq_len, table.hidden_size)


@pytest.mark.parametrize(
    ("values", "architecture"), [(c[0], c[1]) for c in CASES if c[2] == "sdpa"]
)
def test_both_cost_the_same_time(values: dict[str, Any], architecture: str) -> None:
    """Where bytes and products matter, not launches; eager attention is priced by its own formula
    in the table, as two products in the trace, and left out.
    """
    costs = ComputeModel(catalog.gpu("H100-SXM-80GB"))

    def seconds(model: Model, *, backward: bool) -> float:
        operators = (o for layer in model.layers for o in layer.body.operators)
        return sum(
            costs.operator_s(o, batch=4096, dtype="bf16", backward=backward) for o in operators
        )

    traced = trace(on_meta(values, architecture, "sdpa"), inputs(values))
    table = read(values, architecture, "sdpa")
    for backward in (False, True):
        ours, theirs = (seconds(m, backward=backward) for m in (traced, table))
        assert ours == pytest.approx(theirs, rel=0.2), backward


def test_equal_blocks_share_one_body() -> None:
    """But for the last, whose output is read by the norm alone."""
    values = LLAMA | {"num_hidden_layers": 4}
    traced = trace(on_meta(values, "LlamaForCausalLM", "sdpa"), inputs(values))
    first, second, third, _ = (layer.body for layer in traced.layers if layer.kind == "block")
    assert first is second is third


def test_llama_8b_is_traced_in_seconds() -> None:
    values = LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    module = on_meta(values, "LlamaForCausalLM", "sdpa")
    began = time.perf_counter()
    traced = trace(module, inputs(values, 8192))
    assert time.perf_counter() - began < 20
    table = read(values, "LlamaForCausalLM", "sdpa", 8192)
    assert traced.num_parameters == table.num_parameters == 8_030_261_248
    assert traced.flops == table.flops
    assert saved_bytes(traced) == pytest.approx(saved_bytes(table), rel=1e-3)


def test_control_flow_over_positions_and_masks_is_followed() -> None:
    """A mask of ones is no mask, a padded one is a float bias per layer: as in a real run."""
    module = on_meta(LLAMA, "LlamaForCausalLM", "sdpa")
    given = inputs(LLAMA)
    full = torch.ones(BATCH, TOKENS, dtype=torch.long)
    padded = full.clone()
    padded[:, :5] = 0
    plain = trace(module, given)
    assert saved_bytes(trace(module, given | {"attention_mask": full})) == saved_bytes(plain)
    biased = trace(module, given | {"attention_mask": padded})
    # grouped key-value heads are repeated when there is a mask: 2 layers x (k, v) x copies
    repeated = 2 * 2 * 2 * TOKENS * (64 - 32)
    assert saved_bytes(biased) == saved_bytes(plain) + 2 * 2 * TOKENS * TOKENS + repeated
