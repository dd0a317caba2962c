"""Layers that keep a state: products of their scans, what grows, how configs name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.models.mixers import UNTIMED
from raysim.models.table import Model, Operator
from raysim.perf.compute import ComputeModel

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 2, "mamba_d_state": 128,
    "layer_types": ["mamba", "attention"], "num_local_experts": 0,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-"}


def scans(model: Model) -> list[Operator]:
    return [o for layer in model.layers for o in layer.body.operators if o.kind == "scan"]


def products(*shapes: tuple[int, int, int]) -> int:
    return sum(2 * m * n * k for m, n, k in shapes)


def test_products_of_a_gated_delta_rule_are_those_of_its_chunks() -> None:
    """One chunk of one head (Yang et al., Gated Delta Networks, section 3.3), 32 heads."""
    c, dk, dv = 64, 128, 128
    chunk = products(
        (c, c, dk), (c, dk, c), (c, dv, c),  # keys with keys; w and u
        (c, dv, dk), (dk, dv, c),  # what the state already says; its update
        (c, c, dk), (c, dv, dk), (c, dv, c),  # queries with keys, with the state; outputs
    )  # fmt: skip
    (core, *_) = scans(build(NEXT, seq_len=4 * c))
    assert core.flops == 4 * 32 * chunk
    (ragged, *_) = scans(build(NEXT, seq_len=4 * c - 5))  # the last chunk is computed whole
    assert ragged.flops == core.flops


def test_products_of_mamba_2_are_those_of_its_chunks() -> None:
    """Dao and Gu, Transformers are SSMs, section 6: scores by group, the rest by head."""
    c, n, p, heads, channels = 256, 128, 64, 128, 8192 + 2 * 128
    head = products((c, p, c), (n, p, c), (c, p, n))  # within, states, across
    (core,) = scans(build(GRANITE, seq_len=2 * c))
    convolved = 2 * 2 * c * channels * 4
    assert core.flops == 2 * (heads * head + products((c, c, n))) + convolved


@pytest.mark.parametrize("config", [NEXT, GRANITE, NEMOTRON], ids=lambda c: c["model_type"])
def test_what_is_kept_and_moved_grows_with_tokens_alone(config: dict[str, Any]) -> None:
    short, long = (scans(build(config, seq_len=n))[0] for n in (1024, 4096))
    for what in ("moved", "moved_backward", "output", "flops", "flops_backward"):
        assert getattr(long, what) == 4 * getattr(short, what)
    assert sum(s.numel for s in long.saves) == 4 * sum(s.numel for s in short.saves)


def test_a_scan_takes_the_longer_of_its_bytes_and_its_products() -> None:
    gpu = catalog.node("hgx-h100-8").gpu
    assert gpu is not None
    compute = ComputeModel(gpu)
    (core,) = scans(build(GRANITE, seq_len=4096))
    bytes_s = 2 * core.moved / gpu.memory_bytes_per_s
    products_s = core.flops / gpu.flops_per_s["bf16"]
    took = compute.operator_s(core, batch=1, dtype="bf16")
    assert max(bytes_s, products_s) < took < 1.6 * max(bytes_s, products_s)
    halved = compute.operator_s(core, batch=1, dtype="bf16", tp=2)
    assert halved == pytest.approx(took / 2, rel=0.2)
    assert compute.provenance["scan"].basis == "assumed"


def test_every_fourth_layer_attends_unless_the_config_lists_them() -> None:
    def kinds(**keys: Any) -> str:
        layers = build({**NEXT, "num_hidden_layers": 8, **keys}, seq_len=64).layers
        names = [{m.name.partition(".")[0] for m in x.body.modules} for x in layers]
        return "".join(
            "F" if "self_attn" in n else "L" if "linear_attn" in n else "" for n in names
        )

    assert kinds() == "LLLFLLLF"
    assert kinds(full_attention_interval=2) == "LFLFLFLF"
    assert kinds(layer_types=["full_attention"] * 2 + ["linear_attention"] * 6) == "FFLLLLLL"
    with pytest.raises(ScenarioError, match="expected 8 entries, one per layer, got 3"):
        kinds(layer_types=["full_attention"] * 3)


def test_tensor_parallelism_must_divide_heads_and_groups() -> None:
    assert ("linear_num_key_heads", 16) in build(NEXT, seq_len=64).divisible
    assert ("mamba_n_groups", 1) in build(GRANITE, seq_len=64).divisible
    assert ("n_groups", 8) in build(NEMOTRON, seq_len=64).divisible


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (NEXT | {"linear_num_value_heads": 24}, "16 does not divide linear_num_value_heads"),
        (NEXT | {"partial_rotary_factor": 2}, r"expected a share in \(0, 1\]"),
        (GRANITE | {"mamba_n_heads": 100}, "100 does not divide"),
        (GRANITE | {"mamba_d_head": 32}, "128 heads of 32 are not 8192 wide"),
        (NEMOTRON | {"hybrid_override_pattern": "MX"}, r"expected letters of M \* E -"),
        (NEMOTRON | {"layers_block_type": ["mamba", "gru"]}, "expected a list of names among"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        build(config, seq_len=64)


def test_nemotron_s_layers_are_one_thing_each_however_they_are_named() -> None:
    new = {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]}
    old = {"layers_block_type": ["mamba", "moe", "attention", "mlp"], "num_hidden_layers": 9}
    letters = build(NEMOTRON, seq_len=64)
    assert [x.kind for x in letters.layers].count("block") == 4
    for keys in (new, old, {}):
        other = build({"model_type": "nemotron_h", **keys}, seq_len=64)
        assert dict(other.parameters()) == dict(letters.parameters())


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "gemma3", "llama4"])
def test_a_text_model_s_keys_outside_of_text_config_are_not_passed_over(family: str) -> None:
    with pytest.raises(ScenarioError, match="stands outside of text_config"):
        build({"model_type": family, "hidden_size": 64}, seq_len=64)
    assert build({"model_type": family}, seq_len=64)


def test_a_training_run_says_that_scans_were_never_timed(tmp_path: Path) -> None:
    """Unmodified configs, ZeRO-3 on 16 GPUs."""
    said = {}
    for name in ("qwen3.5-27b", "granite-4.0-h-small", "llama-3.1-8b"):
        config = (CONFIGS / f"{name}.json").read_text()
        (tmp_path / "config.json").write_text(config)
        zero = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}}  # fmt: skip
        (tmp_path / "ds.json").write_text(json.dumps(zero))
        (tmp_path / "scenario.yaml").write_text(
            "raysim: 1\nname: x\ncluster: {node: hgx-h100-8, nodes: 2}\n"
            "model: {from: config.json}\njobs: [{train: {deepspeed: ds.json, seq_len: 1024}}]\n"
        )
        result = raysim.run(raysim.load(tmp_path))
        assert result.summary["memory"]["fits"]
        said[name] = UNTIMED in result.summary["simplifications"]
    assert said == {"qwen3.5-27b": True, "granite-4.0-h-small": True, "llama-3.1-8b": False}
