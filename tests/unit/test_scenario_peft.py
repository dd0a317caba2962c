"""``train.peft`` and ``train.quantization``: PEFT's file, what it does to a job, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.models.four_bit import WEIGHT_BYTES, stored_bytes
from raysim.planner.files import deploy_files
from raysim.results.result import Result
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping, load
from raysim.training.checkpoint.files import checkpoint_files
from raysim.training.layers.sections import Gradient

MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
    "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 8192, "tie_word_embeddings": False,
}  # fmt: skip
ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "lora_alpha": 32, "bias": "none",
    "target_modules": ["q_proj", "v_proj"], "inference_mode": True, "use_dora": False,
    "layer_replication": None, "corda_config": None, "peft_version": "0.18.0",
}  # fmt: skip
ZERO: dict[str, Any] = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
TRAINED = 8 * 2 * 16 * 2 * 1024


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return ZERO | {"zero_optimization": {"stage": stage, **more}}


def scenario(**train: Any) -> Scenario:
    said = {"seq_len": 512, "steps": 3, "optimizer": "AdamW", "peft": ADAPTER} | train
    if "deepspeed" not in said:
        said = {"micro_batch": 2, "precision": "bf16"} | said
    data = {
        "name": "tuned", "cluster": {"node": "hgx-h100-8", "nodes": 1}, "model": {"from": MODEL},
        "jobs": [{"train": {k: v for k, v in said.items() if v is not None}}],
    }  # fmt: skip
    made = from_mapping(data)
    assert isinstance(made, Scenario)
    return made


def played(**train: Any) -> Result:
    return raysim.run(scenario(**train), check=True, what_if=False)


def held(result: Result) -> dict[str, int]:
    """Bytes at the peak, by category."""
    return {row["category"]: row["bytes"] for row in result.summary["memory"]["by_category"]}


ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "autocast": {"precision": "fp32", "ddp": {"autocast": "bf16"}},
    "fsdp1": {"fsdp": {"version": 1, "use_orig_params": True}},
    "fsdp2": {"fsdp": {"version": 2}},
    "zero0": {"deepspeed": zero(0)},
    "zero1": {"deepspeed": zero(1)},
    "zero2": {"deepspeed": zero(2)},
    "zero3": {"deepspeed": zero(3)},
    "zero3 offload": {"optimizer": None, "deepspeed": zero(
        3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"},
    ) | {"optimizer": {"type": "AdamW"}}},
    "pipeline": {"deepspeed": ZERO | {"gradient_accumulation_steps": 4},
                 "pipeline": {"stages": 2}},
}  # fmt: skip


@pytest.mark.parametrize("checkpointed", ["none", "full"])
@pytest.mark.parametrize("name", ENGINES)
def test_adapters_take_less_memory_and_communicate_less(name: str, checkpointed: str) -> None:
    train = ENGINES[name] | {"activation_checkpointing": checkpointed}
    tuned, full = played(**train), played(**train, peft=None)
    peaks = [r.summary["memory"]["allocated_peak_bytes"] for r in (tuned, full)]
    assert peaks[0] < peaks[1]
    reduced = [
        sum(row["bytes"] for row in r.summary["collectives"]
            if row["op"] in ("all_reduce", "reduce_scatter"))
        for r in (tuned, full)
    ]  # fmt: skip
    assert 0 < reduced[0] < 0.1 * reduced[1]


def test_adapters_beside_half_weights_are_fp32_unless_told() -> None:
    """16 bytes each beside weights that have none, or 8."""
    for wide, said in ((4, True), (2, False)):
        found = held(played(peft=ADAPTER | {"autocast_adapter_dtype": said}))
        assert found["optimizer_state"] == pytest.approx(2 * wide * TRAINED, rel=0.01)


def test_a_file_of_peft_s_own(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER, indent=2))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "scenario.yaml").write_text(
        "name: tuned\ncluster: {node: hgx-h100-8, nodes: 1}\nmodel: {from: config.json}\njobs:\n"
        "  - train: {peft: adapter_config.json, seq_len: 128, micro_batch: 1, precision: bf16}\n"
    )
    made = load(tmp_path)
    assert isinstance(made, Scenario)
    assert build_job(made).plan.model.num_trainable == TRAINED
    bad = json.dumps(ADAPTER | {"use_dora": True}, indent=2)
    (tmp_path / "adapter_config.json").write_text(bad)
    line = 1 + bad.splitlines().index('  "use_dora": true,')
    with pytest.raises(ScenarioError, match=rf"adapter_config.json:{line}:\d+ +use_dora: is not"):
        build_job(load(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"peft": ADAPTER | {"target_modules": ["query"]}}, "target_modules query not found"),
        ({"peft": ADAPTER | {"r": 0}}, "peft.r: must be at least 1"),
        ({"peft": ADAPTER | {"peft_type": "IA3"}}, "peft.peft_type"),
        ({"peft": ADAPTER | {"bias": "all"}}, "peft.bias"),
        ({"peft": ADAPTER | {"target_modules": "(q"}}, "not a regular expression"),
        ({"tensor_parallel": 2}, "adapters over 2 tensor-parallel ranks"),
        ({"quantization": {}, "peft": None}, "4-bit weights are frozen"),
        ({"quantization": {}, "deepspeed": zero(3)}, "gathers of two types are not simulated"),
        ({"quantization": {}, "fsdp": {"version": 2}}, "shards floating types alone"),
        ({"quantization": {"load_in_8bit": True}}, "load_in_8bit"),
    ],
)
def test_mistakes_say_where_and_what(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        build_job(scenario(**train))


def test_four_bits_store_less_and_take_longer() -> None:
    four, half = played(quantization={"bnb_4bit_use_double_quant": True}), played()
    linear = 8 * (4 * 1024 * 1024 + 3 * 1024 * 2816)
    assert held(half)["parameter"] - held(four)["parameter"] == pytest.approx(
        linear * (2 - 0.516), rel=0.01
    )
    assert four.summary["step"]["seconds"] > half.summary["step"]["seconds"]


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "zero3"])
def test_four_bits_are_sharded_but_not_their_scales(name: str) -> None:
    said = {"bnb_4bit_quant_storage": "bfloat16"}
    four, half = played(**ENGINES[name], quantization=said), played(**ENGINES[name])
    linear = 8 * (4 * 1024 * 1024 + 3 * 1024 * 2816)
    spared = linear * ((2 - 0.5) / 8 - 4 / 64)
    assert held(half)["parameter"] - held(four)["parameter"] == pytest.approx(spared, rel=0.01)


def test_zero3_counts_four_bits_as_elements_of_the_other_weights_type() -> None:
    # Real DeepSpeed 0.19 on 2 ranks, bitsandbytes 0.50.2: ds_numel of Linear4bit(256, 1024) is
    # 131,072 kept in uint8 and 65,536 in bfloat16; its scales are no parameter.
    weight = Gradient("a.weight", 256 * 1024, stored_bytes=stored_bytes(double=True))
    kept = weight._replace(whole_bytes=stored_bytes(double=True) - WEIGHT_BYTES)
    assert (kept.packed(1).numel, kept.packed(2).numel) == (131_072, 65_536)
    assert weight._replace(stored_bytes=4.0).packed(2).numel == weight.numel
    said = {"bnb_4bit_quant_storage": "bfloat16"}
    with pytest.raises(ScenarioError, match="would round the bytes that hold 4-bit weights"):
        played(deepspeed=zero(3, zero_quantized_weights=True), quantization=said)


def test_frozen_weights_that_are_offloaded_are_in_main_memory() -> None:
    tuned, full = played(**ENGINES["zero3 offload"]), played(**ENGINES["zero3 offload"], peft=None)
    hosts = [
        {row["category"]: row["bytes"] for row in r.summary["memory"]["host"]["by_category"]}
        for r in (tuned, full)
    ]
    stored = build_job(scenario(peft=None)).plan.model.num_parameters * 2
    # Trained ones are pinned one by one, and once more flat.
    assert hosts[0]["parameter"] == pytest.approx(stored + 2 * 2 * TRAINED, rel=0.02)
    assert hosts[1]["parameter"] > 2 * stored
    sharded = played(fsdp={"version": 2, "cpu_offload": True}).summary["memory"]["host"]
    of_fsdp = {row["category"]: row["bytes"] for row in sharded["by_category"]}
    assert of_fsdp["parameter"] == pytest.approx(stored + 2 * TRAINED, rel=1e-3)
    assert of_fsdp["gradient"] == pytest.approx(2 * TRAINED, rel=1e-3)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "zero2", "zero3"])
def test_checkpoints_hold_adapters_alone(name: str) -> None:
    plan = build_job(scenario(**ENGINES[name])).plan
    files = checkpoint_files(plan, "full", tuple((0, i) for i in range(8)))
    assert sum(f.size_bytes for f in files) < 20 * TRAINED


def test_a_plan_s_choice_comes_with_its_adapter() -> None:
    chosen = scenario(deepspeed=zero(2)).with_({"train.peft.r": 64})
    assert json.loads(deploy_files(chosen)["adapter_config.json"]) == ADAPTER | {"r": 64}
