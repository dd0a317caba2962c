"""``train.fsdp``: its own section, Accelerate's file unmodified, and what is said to mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.plan import TrainingPlan
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.states.wrapping import wrapped_modules

FILES = Path(__file__).parents[1] / "data" / "fsdp"
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 1024, "tie_word_embeddings": False,
}  # fmt: skip


def scenario(fsdp: Any = None, *, folder: Path = FILES, nodes: int = 1, **train: Any) -> Scenario:
    said = {"micro_batch": 1, "seq_len": 64, "steps": 2} | train
    if fsdp is not None:
        said["fsdp"] = fsdp
    found = from_mapping(
        {
            "cluster": {"node": "hgx-h100-8", "nodes": nodes},
            "model": {"from": MODEL},
            "jobs": [{"train": said}],
        },
        folder=folder,
    )
    assert isinstance(found, Scenario)
    return found


def plan(fsdp: Any = None, **options: Any) -> TrainingPlan:
    return build_job(scenario(fsdp, **options)).plan


def refused(fsdp: Any, **options: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        build_job(scenario(fsdp, **options))
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


def test_engine_alone_is_fsdp2_with_torchs_defaults() -> None:
    made = plan(engine="fsdp")
    assert (made.engine, made.fsdp, made.precision) == ("fsdp", FsdpSettings(), "fp32")
    assert (made.engine_label, plan({}).engine) == ("FSDP2", "fsdp")


def test_every_setting_reaches_the_plan() -> None:
    second = plan(
        {
            "version": 2, "reshard_after_forward": 4, "root_reshard_after_forward": True,
            "replicate": 2, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
            "transformer_layer_cls": "LlamaMLP", "wrap_ends": True, "cpu_offload": True,
            "pin_memory": False, "forward_prefetch": True, "sync_every_micro_batch": True,
        },
        nodes=2,
    )  # fmt: skip
    assert second.fsdp == FsdpSettings(
        reshard_after_forward=4, root_reshard_after_forward=True, replicas=2, param_dtype="bf16",
        reduce_dtype="fp32", layer_classes=("LlamaMLP",), wrap_ends=True, cpu_offload=True,
        pin_memory=False, forward_prefetch=True, sync_every_micro_batch=True,
    )  # fmt: skip
    assert second.compute_dtype == "bf16"
    first = plan(
        {
            "version": 1, "sharding_strategy": "HYBRID_SHARD_ZERO2", "mixed_precision": "fp16",
            "min_num_params": 1000, "backward_prefetch": "NO_PREFETCH",
            "limit_all_gathers": False, "use_orig_params": True, "trained_apart": False,
        },
        nodes=2,
    )  # fmt: skip
    assert first.fsdp == FsdpSettings(
        version=1, sharding_strategy="_HYBRID_SHARD_ZERO2", replicas=2, param_dtype="fp16",
        reduce_dtype="fp16", min_num_params=1000, backward_prefetch=None, limit_all_gathers=False,
        use_orig_params=True, trained_apart=False,
    )  # fmt: skip


def test_accelerates_file_of_version_1_unmodified() -> None:
    read = scenario("accelerate_v1.yaml")
    made = build_job(read).plan
    assert made.fsdp == FsdpSettings(
        version=1, sharding_strategy="SHARD_GRAD_OP", param_dtype="bf16", reduce_dtype="bf16",
        layer_classes=("LlamaDecoderLayer",), use_orig_params=True,
    )  # fmt: skip
    assert (made.precision, made.activation_checkpointing) == ("fp32", "full")
    assert "accelerate_v1.yaml" in read.files


def test_accelerates_file_of_version_2_wraps_the_ends_and_replicates() -> None:
    made = plan("accelerate_v2.yaml", nodes=2)
    assert made.fsdp == FsdpSettings(
        replicas=2, param_dtype="bf16", reduce_dtype="bf16", wrap_ends=True
    )
    assert made.engine_label == "FSDP2, 2 replicas"


def test_a_resolved_scenario_with_accelerates_file_replays() -> None:
    read = scenario("accelerate_v1.yaml")
    again = from_mapping(read.resolved())
    assert isinstance(again, Scenario)
    assert build_job(again).plan.fsdp == build_job(read).plan.fsdp


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_all_that_transformers_does_not_split_is_wrapped_in_encoders(family: str) -> None:
    """``BertPreTrainedModel._no_split_modules``, Accelerate's choice if none is said."""
    found = from_mapping(
        {
            "cluster": {"node": "hgx-h100-8"},
            "model": {"from": {"model_type": family.lower(), "num_hidden_layers": 2}},
            "jobs": [{"train": {"fsdp": {"version": 2}, "micro_batch": 1, "seq_len": 64}}],
        },
        folder=FILES,
    )
    assert isinstance(found, Scenario)
    settings = FsdpSettings(layer_classes=(f"{family}Embeddings", f"{family}Layer"))
    base = family.lower()
    assert wrapped_modules(build_job(found).plan.model, settings) == [
        (f"{base}.embeddings",), (f"{base}.encoder.layer.0",), (f"{base}.encoder.layer.1",),
    ]  # fmt: skip


def test_settings_can_be_overridden_inside_accelerates_file() -> None:
    read = scenario("accelerate_v1.yaml").with_(
        {"train.fsdp.fsdp_config.fsdp_sharding_strategy": "FULL_SHARD"}
    )
    assert read.strategy.fsdp.sharding_strategy == "FULL_SHARD"


def test_under_mixed_precision_accelerate_keeps_fp32_and_says_so() -> None:
    read = scenario("accelerate_v1.yaml", precision="bf16")
    assert read.strategy.precision == "fp32"
    assert any("fp32 under mixed precision" in w.message for w in read.warnings)


def edited(tmp_path: Path, file: str, old: str, new: str) -> str:
    """What is said to a file with one mistake."""
    text = (FILES / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    return refused(file, folder=tmp_path, nodes=2)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("accelerate_v1.yaml", "fsdp_offload_params", "fsdp_ofload_params",
         (":12:3   unknown key 'fsdp_ofload_params' in fsdp_config; did you mean "
         "'fsdp_offload_params'?")),
        ("accelerate_v1.yaml", "SHARD_GRAD_OP", "SHARD_GRADS",
         (":13:27   fsdp_config.fsdp_sharding_strategy: must be one of FULL_SHARD, SHARD_GRAD_OP, "
         "NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2; did you mean 'SHARD_GRAD_OP'?")),
        ("accelerate_v1.yaml", "distributed_type: FSDP", "distributed_type: DEEPSPEED",
         ":3:19   distributed_type: must be FSDP for train.fsdp"),
        ("accelerate_v1.yaml", "LlamaDecoderLayer", "GPT2Block",
         ("train.fsdp: the model has no module of class GPT2Block; its blocks are "
         "LlamaDecoderLayer")),
        ("accelerate_v1.yaml", "mixed_precision: bf16", "mixed_precision: fp8",
         ":20:18   mixed_precision: fp8 needs fp8_config with backend TE or AO"),
        ("accelerate_v2.yaml", "fsdp_version: 2", "fsdp_version: 3",
         ":10:17   fsdp_config.fsdp_version: must be 1 or 2"),
        ("accelerate_v2.yaml", "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP",
         "fully_shard refuses the lists of layers"),
        ("accelerate_v2.yaml", "forward: true", "forward: FULL_SHARD",
         "must be true or false with fsdp_version 2"),
        ("accelerate_v2.yaml", "tp_size: 1", "tp_size: 2", "is not simulated with Accelerate"),
        ("accelerate_v2.yaml", "replicate_size: 2", "replicate_size: 3",
         "3 replicas do not divide 16 ranks"),
    ],
)  # fmt: skip
def test_a_mistake_in_accelerates_file_is_answered_where_it_stands(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    assert said in edited(tmp_path, file, old, new)


@pytest.mark.parametrize(
    ("fsdp", "said"),
    [
        ({"versoin": 2}, "unknown key 'versoin'; did you mean 'version'?"),
        ({"sharding_strategy": "NO_SHARD"}, "sharding_strategy belongs to version 1"),
        ({"version": 1, "reshard_after_forward": 2}, "reshard_after_forward belongs to version 2"),
        ({"reshard_after_forward": 3}, "reshard_after_forward 3 is not a factor of 8"),
        ({"mixed_precision": "int8"}, "must be 'fp32', 'fp16' or 'bf16'"),
        ({"transformer_layer_cls": "LlamaMLP", "min_num_params": 5}, "not both"),
        ({"version": 1, "replicate": 2}, "replicate needs sharding_strategy: HYBRID_SHARD"),
        ({"wrap": False, "min_num_params": 5}, "leaves nothing"),
    ],
)
def test_a_mistake_in_the_section_is_one_line(fsdp: dict[str, Any], said: str) -> None:
    assert said in refused(fsdp)


def test_fsdp_is_an_engine_of_its_own() -> None:
    assert "an engine of its own" in refused({}, engine="ddp")
    assert "needs DeepSpeed's engine" in refused({}, pipeline={"stages": 2})
