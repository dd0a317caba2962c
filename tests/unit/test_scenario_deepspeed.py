"""DeepSpeed's JSON: what fills "auto", what is refused and why, what is said about the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.deepspeed_json import Reading, ScriptSettings, read_deepspeed
from raysim.scenario.deepspeed_keys import status
from raysim.scenario.deepspeed_schema import BLOCKS, OffloadOptimizerBlock, OffloadParamBlock
from raysim.scenario.documents import Document
from raysim.scenario.hjson_text import parse_hjson


def read(config: dict[str, Any] | str, **script: Any) -> Reading:
    text = config if isinstance(config, str) else json.dumps(config)
    settings: dict[str, Any] = {"data_parallel": 4, "world": 4} | script
    scenario = Document(file="scenario.yaml", data={})
    return read_deepspeed(
        parse_hjson(text, "ds.json"), ScriptSettings(scenario=scenario, **settings)
    )


def refused(config: dict[str, Any] | str, **script: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(config, **script)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


def z(stage: int, **keys: Any) -> dict[str, Any]:
    return {"train_batch_size": 8, "zero_optimization": {"stage": stage, **keys}}


AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
}


def test_auto_from_the_trainers_rules() -> None:
    config = read(AUTO, hidden_size=4096, micro_batch=2, precision="bf16", hf_trainer=True).config
    assert config.zero.reduce_bucket_size == 4096 * 4096
    assert config.zero.stage3_prefetch_bucket_size == int(0.9 * 4096 * 4096)
    assert config.zero.stage3_param_persistence_threshold == 40960
    assert config.precision == "bf16"
    assert config.gradient_clipping == 1.0
    assert (config.train_batch_size, config.gradient_accumulation_steps) == (8, 1)


def test_auto_block_wins_over_the_rules_by_key_or_dotted_key() -> None:
    auto = {
        "reduce_bucket_size": 1000,
        "bf16.enabled": True,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
    }
    config = read(AUTO, hidden_size=4096, auto=auto).config
    assert config.zero.reduce_bucket_size == 1000
    assert config.precision == "bf16"
    assert config.train_batch_size == 4 * 2 * 4


def test_auto_that_nothing_fills_is_deepspeeds_default_and_said() -> None:
    reading = read(AUTO, micro_batch=1)
    assert reading.config.zero.stage3_prefetch_bucket_size == 50_000_000
    said = [str(note) for note in reading.notes]
    wanted = 'stage3_prefetch_bucket_size: "auto" and nothing in the scenario sets it'
    assert any(wanted in line and "DeepSpeed's 5e7" in line for line in said)
    assert all("optimizer.params.lr" not in line for line in said)  # no effect on a prediction


def test_hf_trainers_own_batch_size_is_eight() -> None:
    reading = read(AUTO, hf_trainer=True, hidden_size=64)
    assert reading.config.train_micro_batch_size_per_gpu == 8
    assert any("per_device_train_batch_size" in str(note) for note in reading.notes)


def test_gradient_clipping_true_is_one_and_said() -> None:
    reading = read({"train_batch_size": 8, "gradient_clipping": True})
    assert reading.config.gradient_clipping == 1.0
    assert any("float(True) = 1.0" in str(note) for note in reading.notes)


def test_keys_are_sorted_into_three_kinds() -> None:
    reading = read(
        {
            "train_batch_size": 8,
            "steps_per_print": 5,
            "zero_optimization": {
                "stage": 3,
                "zero_quantized_weights": True,
                "zero_quantized_nontrainable_weights": True,
                "offload_param": None,
            },
            "compile": {"deepcompile": True, "offload_parameters": False},
            "comms_logger": {"enabled": True},
            "flops_profiler": {"enabled": False},
            "wandb": {"enabled": True},
            "gradient_acumulation_steps": 2,
        }
    )
    said = [str(warning) for warning in reading.warnings]
    assert len(said) == 3, said
    assert "zero_optimization.zero_quantized_nontrainable_weights: not modelled yet" in said[0]
    assert "compile: not modelled yet" in said[1]
    assert "gradient_acumulation_steps: unknown key; DeepSpeed ignores it; did you mean" in said[2]
    assert all(line.startswith("ds.json:1:") for line in said)


def test_every_key_deepspeed_validates_has_a_status() -> None:
    for path, block in BLOCKS.items():
        for name, info in block.model_fields.items():
            for key in {name, info.alias or name}:
                assert status((*path, key)) != "unknown", (path, key)
    for kind, block in (
        ("offload_param", OffloadParamBlock),
        ("offload_optimizer", OffloadOptimizerBlock),
    ):
        for name in block.model_fields:
            assert status(("zero_optimization", kind, name)) != "unknown", name


ADAM = {"optimizer": {"type": "Adam"}}
CPU = {"device": "cpu"}
OLD = {"release": (0, 19, 6)}
REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
        {},
        "bfloat16 and",
    ),
    (z(2), {"pipeline_stages": 2}, "ZeRO-2 is incompatible with pipeline parallelism"),
    (z(3), {"pipeline_stages": 2}, "ZeRO-3 is incompatible with pipeline parallelism"),
    ({"train_batch_size": 33, "train_micro_batch_size_per_gpu": 8}, {}, "33 != 8 * 1 * 4"),
    ({"gradient_accumulation_steps": 8}, {}, "either train_batch_size or train_micro_batch"),
    (
        z(2, offload_optimizer={"device": "cpu", "ratio": 0.3}),
        {},
        "only supported for ZeRO stage 3",
    ),
    ({"train_batch_size": 8, "amp": {"enabled": True}}, {}, "removed NVIDIA Apex AMP"),
    (
        {"train_batch_size": 8, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        {},
        "only supported with ZeRO stage 1, 2 or 3",
    ),
    (
        z(2) | {"bf16": {"enabled": True, "bf16_optimizer_states": True}},
        {},
        "requires bf16_master_weights_and_grads",
    ),
    (
        z(2) | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}} | ADAM,
        {},
        "requires ZeRO-Offload with DeepSpeedCPUAdam",
    ),
    (z(1) | {"optimizer": {"type": "SGD"}}, {}, "untested with ZeRO; zero_allow_untested"),
    (z(1) | {"optimizer": {"type": "OneBitAdam"}}, {}, "1-bit optimizers have been removed"),
    (z(2, offload_optimizer=CPU), {"optimizer_type": "AdamW"}, "must be DeepSpeedCPUAdam"),
    (
        {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}},
        {},
        "use gradient_clipping",
    ),
    (
        {
            "train_batch_size": 8,
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
        {},
        "unsupported mix",
    ),
    (z(2) | {"gradient_predivide_factor": 2.0}, {}, "with reduce_scatter enabled"),
    (z(3) | {"prescale_gradients": True}, {}, "with reduce_scatter enabled"),
    ({"train_batch_size": 8, "communication_data_type": "int8"}, {}, "fp16, bf16, fp32"),
    (z(2, allgather_bucket_size=3), {}, "multiple of 2"),
    (z(3) | {"optimizer": {"type": "Muon"}}, {}, "Muon and reduce scatter cannot be used together"),
    (z(3, offload_optimizer={"device": "nvme"}), {}, "needs nvme_path"),
    (z(3, offload_param={"device": "nvme"}), {}, "needs nvme_path"),
    (
        {
            "train_batch_size": 8,
            "activation_checkpointing": {"contiguous_memory_optimization": True},
        },
        {},
        "requires partition_activations",
    ),
    (z(3, zero_hpz_partition_size=3), {}, "3 does not divide the world size 4"),
    ({"train_batch_size": 8, "fp16": {"enabled": True, "loss_scale": -2}}, {}, "must be >= 0"),
    (
        {
            "train_batch_size": 8,
            "fp16": {"enabled": True, "loss_scale": 64},
            "optimizer": {"type": "Lamb"},
        },
        {},
        "requires dynamic loss scaling",
    ),
    (z(1, legacy_stage1=True), {}, "no longer supported"),
    (z(2, cpu_offload=True, offload_optimizer=CPU), {}, "deprecated, and given together"),
    (z(1, compute_grad_norm=False), {}, "requires gradient_clipping: 0"),
    (z(3, mics_shard_size=2), {}, "removed MiCS"),
    (z(3, mics_shard_size=3), OLD, "3 does not divide the world size 4"),
    (
        z(3, mics_shard_size=2, offload_optimizer={"device": "cpu"}),
        OLD,
        "no support for CPU offloading",
    ),
    (z(3, mics_shard_size=2), OLD | {"tensor_parallel": 2}, "mixes their weights"),
    (z(3, zero_hpz_partition_size=2), {"tensor_parallel": 2}, "mixes their weights"),
    (
        z(3, zero_hpz_partition_size=2, offload_param={"device": "nvme", "nvme_path": "/x"}),
        {},
        "no place on nvme",
    ),
    (z(3, zero_quantized_gradients=True, reduce_scatter=False), {}, "needs reduce_scatter"),
    (
        z(3, offload_optimizer={"device": "cpu", "ratio": 0.5}) | {"optimizer": {"type": "Lion"}},
        {},
        "only supports DeepSpeedCPUAdam, not Lion",
    ),
    ({"train_batch_size": 8, "aio": {"queue_depth": 0}}, {}, "must be more than 0"),
    (
        {"train_batch_size": 8, "sequence_parallel_size": 2},
        {"pipeline_stages": 2},
        "PipelineModule takes no sequence-parallel groups",
    ),
    (
        z(1) | {"optimizer": {"type": "AdamW", "params": {"beta": [0.9, 0.95]}}},
        {},
        "AdamW has no such argument; did you mean 'betas'?",
    ),
    (
        z(1) | {"optimizer": {"type": "Adam", "params": {"lr": "1e-4"}}},
        {},
        "expected a number, got '1e-4'",
    ),
    ({"train_batch_size": 8}, {"micro_batch": 3}, "8 != 3 * 0 * 4"),
    ({"train_micro_batch_size_per_gpu": 2}, {"micro_batch": 3}, "3 differs from train_micro_batch"),
    ({"train_batch_size": 8}, {"precision": "bf16"}, "trains in fp32, the scenario says"),
    ({"train_batch_size": "auto"}, {"auto": {"train_batch_sizes": 8}}, "did you mean"),
]


@pytest.mark.parametrize(("config", "script", "reason"), REFUSALS, ids=[r[2] for r in REFUSALS])
def test_refused_with_its_reason(
    config: dict[str, Any], script: dict[str, Any], reason: str
) -> None:
    if reason == "did you mean":
        with pytest.raises(ScenarioError, match=reason):
            read(config, **script)
    else:
        assert reason in refused(config, **script)


@pytest.mark.parametrize(
    ("config", "script"),
    [
        (z(1), {"pipeline_stages": 2}),
        (z(1) | {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": True}, {}),
        (z(2, offload_optimizer=CPU), {"optimizer_type": "DeepSpeedCPUAdam"}),
        (z(2, offload_optimizer=CPU), {"optimizer_type": "AdamW", "hf_trainer": True}),
        (
            z(2, offload_optimizer=CPU) | {"zero_force_ds_cpu_optimizer": False},
            {"optimizer_type": "AdamW"},
        ),
        (z(2, reduce_scatter=False) | {"gradient_predivide_factor": 2.0}, {}),
        (z(1) | {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, {}),
        (z(1, compute_grad_norm=False) | {"gradient_clipping": 0}, {}),
    ],
)
def test_the_neighbours_of_refusals_are_accepted(
    config: dict[str, Any], script: dict[str, Any]
) -> None:
    assert read(config, **script).config.train_batch_size == 8


def test_offloading_below_its_stage_is_ignored_as_deepspeed_does() -> None:
    reading = read(z(2, offload_param=CPU))
    assert reading.config.zero.offload_param.device == "none"
    assert any("ignores it at stage 2" in str(note) for note in reading.notes)
    assert read(z(0, offload_optimizer=CPU)).config.zero.offload_optimizer.device == "none"


def test_zeropp_twin_flow_and_nvme_are_honoured_without_a_warning() -> None:
    swap = {"device": "nvme", "nvme_path": "/local", "pipeline_read": True, "buffer_count": 8}
    config = z(
        3, zero_hpz_partition_size=2, zero_quantized_weights=True, zero_quantized_gradients=True,
        offload_optimizer=swap | {"ratio": 0.5},
    )  # fmt: skip
    reading = read(config | {"aio": {"block_size": 8388608, "queue_depth": 16}})
    zero = reading.config.zero
    assert reading.warnings == []
    assert (zero.zero_hpz_partition_size, zero.zero_quantized_weights) == (2, True)
    assert (zero.offload_optimizer.ratio, zero.offload_optimizer.buffer_count) == (0.5, 8)
    assert (zero.aio.block_size, zero.aio.queue_depth) == (8388608, 16)
    assert not any("hpz" in str(note) for note in read(z(3)).notes)


def test_zeropp_below_its_stage_is_ignored_as_deepspeed_does() -> None:
    reading = read(z(2, zero_quantized_gradients=True))
    assert not reading.config.zero.zero_quantized_gradients
    assert any("ZeRO++ needs stage 3" in str(note) for note in reading.notes)


def test_mics_is_read_for_releases_that_had_it() -> None:
    config = z(3, mics_shard_size=2, mics_hierarchical_params_gather=True)
    zero = read(config, **OLD).config.zero
    assert (zero.mics_shard_size, zero.mics_hierarchical_params_gather) == (2, True)
    assert zero.shard_ranks(4) == 2
    assert "deepspeed_version: 0.19.6" in refused(z(3, mics_shard_size=2))
    loco = read(z(3, zeropp_loco_param={"err_beta": 0.8}), **OLD)
    assert any("zeropp_loco_param: not modelled yet" in str(w) for w in loco.warnings)


def test_zero3_gathers_one_by_one_before_its_coordinator_was_rewritten() -> None:
    assert read(z(3), release=(0, 5, 10)).config.separate_gathers
    assert not read(z(3), release=(0, 6, 0)).config.separate_gathers
    assert not read(z(2), release=(0, 5, 10)).config.separate_gathers


def test_checkpoint_boundaries_synchronize_where_the_json_says_so() -> None:
    block = {"synchronize_checkpoint_boundary": True}
    reading = read(z(1) | {"activation_checkpointing": block})
    assert reading.config.synchronize_checkpoint_boundary
    assert not any("synchronize" in str(w) for w in reading.warnings)
    assert not read(z(1)).config.synchronize_checkpoint_boundary


def test_comments_trailing_commas_and_positions() -> None:
    text = """{
      // as people write it
      "train_batch_size": 32,   # and so
      "zero_optimization": {"stage": 2, "overlap_com": true,},
    }"""
    assert refused(text).startswith("ds.json:4:41   unknown key 'overlap_com' in zero_optimization")


def test_optimizer_kernels() -> None:
    def fused(**optimizer: Any) -> bool:
        read_ = read({"train_batch_size": 8, "optimizer": optimizer}).config.optimizer
        assert read_ is not None
        return read_.fused

    assert fused(type="AdamW")
    assert not fused(type="AdamW", params={"torch_adam": True})
    assert not fused(type="SGD", params={"momentum": 0.9})
    assert read({"train_batch_size": 8}).config.optimizer is None


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning"),
        ({"compression_training": {"layer_reduction": {"enabled": True}}}, "compression_training"),
        ({"progressive_layer_drop": {"enabled": True, "theta": 0.5}}, "progressive_layer_drop"),
        ({"sparse_attention": {"mode": "fixed", "block": 16}}, "sparse_attention"),
        ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000}}},
         "optimizer.type"),
    ],
)  # fmt: skip
def test_removed_features_are_said_to_be_left_out_of_releases_that_had_them(
    block: dict[str, Any], key: str
) -> None:
    config = {"train_batch_size": 8, **block}
    assert "0.19.6" in refused(config)
    said = [str(warning) for warning in read(config, release=(0, 18, 2)).warnings]
    assert len(said) == 1
    assert f"{key}: not modelled" in said[0]


def test_a_removed_feature_that_is_off_is_not_worth_a_word() -> None:
    off = {
        "train_batch_size": 8,
        "curriculum_learning": {"enabled": False},
        "amp": {"enabled": False},
    }
    assert read(off, release=(0, 18, 2)).warnings == []


def test_what_leaves_no_prediction_is_refused_in_every_release() -> None:
    assert "fp16 or bf16" in refused({"train_batch_size": 8, "amp": {"enabled": True}}, **OLD)
    elastic = {"train_batch_size": 8, "elasticity": {"enabled": True}}
    assert "set them directly" in refused(elastic, **OLD)


def test_gradient_clipping_was_off_by_default_before_0_19_3() -> None:
    """DeepSpeed #8068 made it 1.0."""
    config = {"train_batch_size": 8}
    assert read(config, release=(0, 19, 2)).config.gradient_clipping == 0.0
    assert read(config, release=(0, 19, 3)).config.gradient_clipping == 1.0
    assert read(config | {"gradient_clipping": 0.5}, **OLD).config.gradient_clipping == 0.5


def test_precision_blocks_were_not_strict_before_0_17_1() -> None:
    config = {"train_batch_size": 8, "fp16": {"enabled": True, "opt_level": "O2"}}
    assert read(config, release=(0, 17, 0)).config.precision == "fp16"
    assert "unknown key 'opt_level'" in refused(config, release=(0, 17, 1))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"train_batch_size": GBSIZE,\n "fp16": {\n"enabled": FP16_ON,\n}}', "GBSIZE, FP16_ON"),
        ('{"train_batch_size": 8,\n "zero_optimization": {"stage": ${stage}\n}}', "${stage}"),
    ],
)
def test_a_file_that_its_script_fills_in_is_told_as_one_problem(text: str, names: str) -> None:
    """Megatron-DeepSpeed's templates, of which Hjson makes texts with a comma."""
    said = refused(text)
    assert "a template, with placeholders" in said
    assert names in said


def test_a_template_that_is_no_json_is_told_too() -> None:
    with pytest.raises(ScenarioError, match=r"placeholders such as .. batch"):
        read('{{% if a %}\n "train_batch_size": {{ batch }} }')


def test_texts_in_capitals_are_no_placeholders() -> None:
    read({"train_batch_size": 8, "checkpoint": {"tag_validation": "WARN"}, "wandb": {"team": "A"}})


def test_contiguous_buffers_may_be_counted_by_the_script() -> None:
    """``deepspeed.checkpointing.configure(num_checkpoints=)``, as Megatron-DeepSpeed calls it."""
    block = {"partition_activations": True, "contiguous_memory_optimization": True}
    reading = read({"train_batch_size": 8, "activation_checkpointing": block})
    assert any("num_checkpoints" in str(note) for note in reading.notes)
    assert reading.config.checkpoint_buffers == 0
