"""DeepSpeed's JSON read by raysim and by the real package: same verdict, same values."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("deepspeed")

from raysim.errors import ScenarioError  # noqa: E402
from raysim.scenario import deepspeed_keys, deepspeed_rules, deepspeed_schema  # noqa: E402
from raysim.scenario.deepspeed_json import ScriptSettings, read_deepspeed  # noqa: E402
from raysim.scenario.documents import Document  # noqa: E402
from raysim.scenario.hjson_text import parse_hjson  # noqa: E402
from raysim.training.settings.deepspeed import DeepSpeedConfig  # noqa: E402

WORLD = 4


def real_config(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeedConfig of the real package for a world of four ranks."""
    import hjson
    from deepspeed.runtime import config as module
    from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

    monkeypatch.setattr(module.dist, "get_rank", lambda group=None: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda group=None: WORLD)
    data = hjson.loads(text, object_pairs_hook=dict_raise_error_on_duplicate_keys)
    return module.DeepSpeedConfig(data)


def our_config(text: str) -> DeepSpeedConfig:
    script = ScriptSettings(
        data_parallel=WORLD, world=WORLD, scenario=Document(file="scenario.yaml", data={})
    )
    return read_deepspeed(parse_hjson(text, "ds.json"), script).config


def z(**keys: Any) -> dict[str, Any]:
    return {"train_batch_size": 8, "zero_optimization": keys}


def b(**keys: Any) -> dict[str, Any]:
    return {"train_batch_size": 8, **keys}


ACCEPTED: list[dict[str, Any]] = [
    {"train_batch_size": 8},
    {"train_micro_batch_size_per_gpu": 3},
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2},
    {"train_batch_size": 32, "gradient_accumulation_steps": 4},
    {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
    {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    },
    b(gradient_clipping=True),
    b(gradient_clipping=0),
    b(fp16={"enabled": True}),
    b(fp16={"enabled": True, "loss_scale": 128, "min_loss_scale": 0}),
    b(fp16={"enabled": True, "loss_scale": "0", "initial_scale_power": 12}),
    b(bf16={"enabled": True, "check_grad_overflow": False}),
    b(bfloat16={"enabled": True}),
    b(bf16={"enabled": "auto"}),
    b(
        bf16={
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        },
        zero_optimization={"stage": 3},
    ),
    z(stage=0),
    z(stage=1, reduce_bucket_size=5e8),
    z(stage=2, reduce_bucket_size="200000000", overlap_comm=True),
    z(stage=2, allgather_bucket_size=2e8, contiguous_gradients=False, reduce_scatter=False),
    z(stage=2, offload_optimizer={"device": "cpu", "pin_memory": False}),
    z(stage=2, offload_param={"device": "cpu"}),
    z(stage=0, offload_optimizer={"device": "cpu"}),
    z(stage=3, stage3_prefetch_bucket_size=1e7, stage3_param_persistence_threshold=0),
    z(stage=3, prefetch_bucket_size=1e7, max_live_parameters=2e9, max_reuse_distance=0),
    z(stage=3, sub_group_size=1e12, stage3_max_live_parameters=1e9),
    z(stage=3, stage3_gather_fp16_weights_on_model_save=True),
    z(stage=3, stage3_gather_16bit_weights_on_model_save=True),
    z(
        stage=3,
        offload_optimizer={"device": "cpu", "ratio": 0.5, "pipeline_read": True},
        offload_param={"device": "cpu", "buffer_count": 7, "max_in_cpu": 0},
    ),
    z(stage=3, reduce_bucket_size="auto", stage3_prefetch_bucket_size="auto"),
    z(stage=3, zero_quantized_weights=True, zero_hpz_partition_size=2),
    z(stage=3, zero_quantized_gradients=True, zero_hpz_partition_size=8),
    z(
        stage=3,
        offload_optimizer={
            "device": "nvme",
            "nvme_path": "/local",
            "buffer_count": 12,
            "pipeline_read": True,
            "pipeline_write": True,
            "fast_init": True,
        },
        offload_param={"device": "nvme", "nvme_path": "/local", "buffer_size": 1e9},
    )
    | {"aio": {"queue_depth": 32, "intra_op_parallelism": 4, "overlap_events": True}},
    z(stage=3, stage3_model_persistence_threshold=1e6, stage3_module_granularity_threshold=5),
    z(stage=2, cpu_offload=True),
    z(stage=3, cpu_offload_param=True, cpu_offload=False, cpu_offload_use_pin_memory=True),
    z(stage=1, round_robin_gradients=True, use_multi_rank_bucket_allreduce=False),
    z(stage=2, offload_optimizer={"device": "none"}, offload_param=None),
    z(stage="auto"),
    z(stage=2, zenflow={"topk_ratio": 0.2, "select_interval": "auto"}),
    b(zero_optimization=True),
    b(zero_optimization=False),
    b(communication_data_type="BF16"),
    b(communication_data_type="fp32", gradient_allreduce_op="SUM"),
    b(
        zero_optimization={"stage": 1},
        bf16={"enabled": True},
        data_types={"grad_accum_dtype": "fp32"},
    ),
    b(optimizer={"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}),
    b(optimizer={"type": "Lion", "params": {"lr": "auto"}}),
    b(optimizer={"type": "SGD", "params": {"momentum": 0.9}}),
    b(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 100}}),
    b(tensor_parallel={"autotp_size": 1}),
    b(comms_logger={"enabled": True, "verbose": False}),
    b(tensorboard={"enabled": False, "output_path": "x"}, wandb={"project": "p"}),
    b(compile={"deepcompile": False, "passes": ["z3"]}),
    b(timers={"throughput": {"enabled": False}}),
    b(activation_checkpointing={"partition_activations": True, "cpu_checkpointing": True}),
    b(wall_clock_breakdown=True, steps_per_print=10, some_key_nobody_knows=1),
    b(flops_profiler={"enabled": False}, aio={"block_size": 1048576}),
    b(hybrid_engine={"enabled": False}),
    b(checkpoint={"tag_validation": "Ignore"}),
    b(pipeline={"pipe_partitioned": False, "stages": "auto"}),
]

REFUSED: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation_steps": 2},
    {"train_batch_size": 0},
    {"train_batch_size": -8},
    {"train_batch_size": 33, "train_micro_batch_size_per_gpu": 8},
    {"train_batch_size": 2},
    {"train_micro_batch_size_per_gpu": 0},
    {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": -1},
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
    {"train_batch_size": "auto"},
    b(fp16={"enabled": True}, bf16={"enabled": True}),
    b(fp16={"enabled": True, "loss_scale": -1}),
    b(fp16={"enabled": True, "loss_scale": True}),
    b(fp16={"enabled": True, "loss_scale": "big"}),
    b(fp16={"enabled": True, "loss_scale_window": 0}),
    b(fp16={"enabled": True, "min_loss_scale": 0}),
    b(fp16={"enabled": True, "min_loss_scale": True}),
    b(fp16={"enabled": True, "loss_scle": 0}),
    b(fp16={"enabled": "maybe"}),
    b(bf16={"enabled": True, "grads": 1}),
    b(fp16={"enabled": True, "fp16_master_weights_and_grads": True}),
    b(bf16={"enabled": True, "bf16_master_weights_and_grads": True}),
    b(bf16={"enabled": True, "bf16_optimizer_states": True}, zero_optimization={"stage": 2}),
    z(stage=4),
    z(stage=-1),
    z(stage="two"),
    z(stage=3, stage3_param_persitence_threshold=1e5),
    z(stage=2, reduce_bucket_size=0),
    z(stage=2, reduce_bucket_size=1.5),
    z(stage=2, reduce_bucket_size="5e8"),
    z(stage=2, allgather_bucket_size=-2),
    z(stage=2, overlap_comm="perhaps"),
    z(stage=3, sub_group_size=-1),
    z(stage=3, stage3_prefetch_bucket_size=None),
    z(stage=2, offload_optimizer={"device": "gpu"}),
    z(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
    z(stage=3, offload_optimizer={"device": "cpu", "ratio": 1.5}),
    z(stage=3, offload_optimizer={"device": "cpu", "buffer_count": -1}),
    z(stage=3, offload_param={"device": "cpu", "buffers": 4}),
    z(stage=3, offload_param="cpu"),
    z(stage=2, cpu_offload=True, offload_optimizer={"device": "cpu"}),
    z(stage=3, cpu_offload_param=True, offload_param={"device": "cpu"}),
    z(stage=3, mics_shard_size=4),
    z(stage=3, zeropp_loco_param={"err_beta": 0.9}),
    z(stage=3, compute_grad_norm=False),
    z(stage=2, zenflow={"topk_ratio": 1.5}),
    z(stage=2, zenflow={"update_interval": 0}),
    b(zero_optimization=[]),
    b(communication_data_type="int8"),
    b(gradient_allreduce_op="max"),
    b(gradient_allreduce_op="sum", zero_optimization={"stage": 3}),
    b(comms_logger={"enabled": True, "verbse": True}),
    b(tensorboard={"enable": True}),
    b(compile={"passes": ["z9"]}),
    b(compile={"deep": True}),
    b(tensor_parallel={"autotp": 2}),
    b(timers={"throughput": {"on": True}}),
    b(hybrid_engine={"max_out_tokens": 0}),
    b(checkpoint={"tag_validation": "Sometimes"}),
    b(checkpoint={"parallel_write": {"pipeline_stage": "x"}}),
    *(b(**{key: {}}) for key in deepspeed_keys.REMOVED),
]


@pytest.mark.parametrize("config", ACCEPTED, ids=json.dumps)
def test_accepted_by_both_with_equal_values(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(config)
    real = real_config(text, monkeypatch)
    ours = our_config(text)
    assert ours.train_batch_size == real.train_batch_size
    assert ours.train_micro_batch_size_per_gpu == real.train_micro_batch_size_per_gpu
    assert ours.gradient_accumulation_steps == real.gradient_accumulation_steps
    assert ours.gradient_clipping == float(real.gradient_clipping)
    assert ours.wall_clock_breakdown == real.wall_clock_breakdown
    precision = "fp16" if real.float16_config.enabled else "fp32"
    assert ours.precision == ("bf16" if real.bfloat16_config.enabled else precision)
    wire = real.communication_data_type
    names = {
        "fp16": "torch.float16",
        "bf16": "torch.bfloat16",
        "fp32": "torch.float32",
        None: "None",
    }
    assert names[ours.communication_data_type] == str(wire)
    assert ours.grad_accum_dtype == real.grad_accum_dtype
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow"):
        assert getattr(ours, name) == getattr(real.bfloat16_config, name), name
    assert (ours.loss_scale is not None) == (
        real.float16_config.enabled and real.float16_config.loss_scale == 0
    )
    recompute = real.activation_checkpointing_config
    assert ours.partition_activations == recompute.partition_activations
    assert ours.cpu_checkpointing == recompute.cpu_checkpointing
    assert ours.pipeline.pipe_partitioned == real.pipeline["pipe_partitioned"]
    assert_zero_equal(ours, real)


def assert_zero_equal(ours: DeepSpeedConfig, real: Any) -> None:
    zero = ours.zero
    for name in zero.__dataclass_fields__:
        theirs = real.zero_config
        if name == "overlap_comm":
            assert zero.overlaps == theirs.overlap_comm
        elif name == "offload_optimizer":
            used = theirs.offload_optimizer if zero.stage > 0 else None
            assert_offload_equal(zero.offload_optimizer, used)
        elif name == "offload_param":
            used = theirs.offload_param if zero.stage == 3 else None
            assert_offload_equal(zero.offload_param, used)
        elif name == "aio":
            for key in zero.aio.__dataclass_fields__:
                assert getattr(zero.aio, key) == real.aio_config[key], key
        elif name.startswith("mics_"):
            assert not hasattr(theirs, name)
            assert getattr(zero, name) in (-1, False)
        else:
            value = getattr(theirs, name, None)
            if value is None:
                value = getattr(theirs, name.removeprefix("stage3_"))
            assert getattr(zero, name) == value, name


def assert_offload_equal(ours: Any, theirs: Any) -> None:
    if theirs is None:
        assert ours.device == "none"
        return
    for name in ours.__dataclass_fields__:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("config", REFUSED, ids=json.dumps)
def test_refused_by_both(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(config)
    with pytest.raises(Exception):  # noqa: B017, PT011  (DeepSpeed raises many kinds)
        real_config(text, monkeypatch)
    with pytest.raises(ScenarioError) as caught:
        our_config(text)
    for problem in caught.value.problems:
        assert problem.where is not None
        assert problem.where.line is not None
        assert "\n" not in str(problem)


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_size": 8, // a comment\n "steps_per_print": 5,}',
        "# hash comment\ntrain_batch_size: 8\nfp16: {enabled: true}\n",
        '/* block */ {"train_batch_size": 1.6e1}',
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5E8,},}',
    ],
)
def test_the_same_relaxed_json_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = real_config(text, monkeypatch)
    ours = our_config(text)
    assert ours.train_batch_size == real.train_batch_size
    assert ours.zero.reduce_bucket_size == real.zero_config.reduce_bucket_size


def test_duplicate_keys_are_refused_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"train_batch_size": 8,\n "train_batch_size": 16}'
    with pytest.raises(ValueError, match="Duplicate"):
        real_config(text, monkeypatch)
    with pytest.raises(ScenarioError, match=r"ds.json:2:2 .*duplicate"):
        our_config(text)


def test_blocks_have_the_real_fields_and_defaults() -> None:
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime.config import HybridEngineConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    s = deepspeed_schema
    pairs: list[tuple[Any, Any]] = [
        (s.ZeroBlock, DeepSpeedZeroConfig),
        (s.OffloadParamBlock, DeepSpeedZeroOffloadParamConfig),
        (s.OffloadOptimizerBlock, DeepSpeedZeroOffloadOptimizerConfig),
        (s.ZenFlowBlock, ZenFlowConfig),
        (s.Bf16Block, DeepSpeedBF16Config),
        (s.Fp16Block, DeepSpeedFP16Config),
        (s.CommsLoggerBlock, CommsLoggerConfig),
        (s.TensorBoardBlock, TensorBoardConfig),
        (s.TensorBoardBlock, CSVConfig),
        (s.WandbBlock, WandbConfig),
        (s.CometBlock, CometConfig),
        (s.HybridEngineBlock, HybridEngineConfig),
        (s.CompileBlock, CompileConfig),
        (s.TensorParallelBlock, TPTrainingConfig),
        (s.ThroughputTimerBlock, DeepSpeedThroughputTimerConfig),
    ]
    for ours, theirs in pairs:
        fields = {name: info.alias for name, info in theirs.model_fields.items()}
        assert {name: info.alias for name, info in ours.model_fields.items()} == fields
        for name, info in ours.model_fields.items():
            if name not in ("dtype", "tensor_parallel", "leaf_module", "prof_ops"):
                assert info.default == theirs.model_fields[name].default, (ours, name)


def test_lists_of_names_are_the_real_ones() -> None:
    import torch
    from deepspeed.runtime import config, lr_schedules
    from deepspeed.runtime.zero import utils

    assert set(deepspeed_keys.REMOVED) == set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert set(deepspeed_keys.REMOVED_ZERO) == set(config._REMOVED_ZERO_CONFIG_KEYS)
    assert set(deepspeed_rules.DEEPSPEED_OPTIMIZERS) == set(config.DEEPSPEED_OPTIMIZERS)
    classes = {n for n in vars(torch.optim) if isinstance(getattr(torch.optim, n), type)}
    assert set(deepspeed_rules.TORCH_OPTIMIZERS) == classes - {"Optimizer"}
    for name in deepspeed_rules.SCHEDULERS:
        known = hasattr(lr_schedules, name) or hasattr(torch.optim.lr_scheduler, name)
        assert known, name
    tested = {cls.__name__.lower() for cls in utils.ZERO_SUPPORTED_OPTIMIZERS}
    extra = {"zenflowcpuadam"}  # built by DeepSpeed itself, never by a script
    assert tested - extra <= set(deepspeed_rules.ZERO_TESTED)
