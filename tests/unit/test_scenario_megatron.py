"""Megatron's launch scripts and arguments, as users have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.arguments import parse_arguments
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, load
from raysim.training.settings.parallel import Mesh

SCRIPT = """#!/bin/bash
# --sequence-parallel in a comment says nothing
TP=${TP:-2}
export CP=2
GPUS=$(nvidia-smi -L | wc -l)
if [ "$X" == "a" ]; then
    NUM=1
else
    NUM=2
fi
MODEL_ARGS=(
    --seq-length 1024
    --num-layers $NUM
)
torchrun --nproc_per_node $GPUS pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" --tensor-model-parallel-size $TP \\
    --context-parallel-size "${CP}" --sequence-parallel --micro-batch-size=1 \\
    --global-batch-size 8 --bf16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 \\
    --split 949,50,1 --data-path 0.5 a 0.5 b
"""
SCENARIO = """raysim: 1
name: megatron
cluster: {{nodes: 1, node: hgx-h100-8}}
model: {{from: config.json}}
jobs:
  - train: {{megatron: {megatron}, steps: 10}}
"""
CONFIG = (
    '{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,'
    ' "num_attention_heads": 8, "num_hidden_layers": 4, "max_position_embeddings": 2048}'
)


def scenario(tmp_path: Path, megatron: str, script: str = SCRIPT) -> Scenario:
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(megatron=megatron))
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "train.sh").write_text(script)
    found = load(tmp_path)
    assert isinstance(found, Scenario)
    return found


def test_arguments_of_a_script() -> None:
    data = parse_arguments(SCRIPT, "train.sh").data
    assert data["tensor_model_parallel_size"] == 2
    assert data["context_parallel_size"] == 2
    assert data["micro_batch_size"] == 1
    assert data["bf16"] is True
    assert data["data_path"] == [0.5, "a", 0.5, "b"]
    assert data["num_layers"] == "$NUM"  # two branches, two values
    assert parse_arguments("--sequence-parallel # --bf16\n", "x").data == {
        "sequence_parallel": True
    }
    mark = parse_arguments(SCRIPT, "train.sh").where(("seq_length",))
    assert (mark.line, mark.column) == (12, 18)


SEVERAL = """\
NNODES=4
GPUS=8
TP=2
DP=$((NNODES*$GPUS/(${TP}*4)))
GBS="$(( $DP * 16 ))"
LOST=$(($NOWHERE*2))
ASKED=$(nvidia-smi | wc -l)
GPT_ARGS=" \\
    --num-layers 24 \\
    --seq-length 1024 \\
    "
ONE="--bf16 --lr 1e-4"
MORE=(--fp16)
python pretrain_gpt.py \\
    --tensor-model-parallel-size $TP \\
    $GPT_ARGS \\
    --pipeline-model-parallel-size 4 \\
    ${ONE} \\
    --sequence-parallel $ONE \\
    --micro-batch-size 1 "${MORE[@]}" \\
    --global-batch-size $GBS \\
    --train-iters $LOST --save-interval $ASKED
"""


def test_variables_that_hold_arguments_end_a_flags_and_sums_are_taken() -> None:
    data = parse_arguments(SEVERAL, "train.sh").data
    assert (data["tensor_model_parallel_size"], data["pipeline_model_parallel_size"]) == (2, 4)
    assert (data["sequence_parallel"], data["micro_batch_size"]) == (True, 1)
    assert (data["num_layers"], data["seq_length"], data["bf16"]) == (24, 1024, True)
    assert data["global_batch_size"] == 64
    assert (data["train_iters"], data["save_interval"]) == ("$LOST", "$ASKED")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7/2", 3), ("(1+2)*3%4", 1), ("-1", "$N"), ("2**9", "$N"), ("A", "$N"), ("1/0", "$N"),
        ("x()", "$N"), ("", "$N"), ("9" * 30 + "*2", "$N"),
    ],
)  # fmt: skip
def test_the_shells_arithmetic(text: str, value: object) -> None:
    assert parse_arguments(f"N=$(({text}))\nrun --n $N\n", "x").data == {"n": value}


def test_a_script_unmodified(tmp_path: Path) -> None:
    found = scenario(tmp_path, "train.sh")
    plan = build_job(found).plan
    assert plan.mesh == Mesh(dp=2, cp=2, tp=2)
    assert plan.engine_label == "Megatron-core"
    assert (plan.micro_batch, plan.gradient_accumulation_steps) == (1, 4)
    assert plan.model.seq_len == 1024
    assert plan.precision == "bf16"
    assert (plan.activation_checkpointing, plan.recompute_layers) == ("full", 1)
    assert plan.megatron.sequence_parallel
    assert plan.megatron.use_distributed_optimizer
    embedding = next(iter(plan.model.parameters()))
    assert embedding[1].shape == (1024, 512)  # 1000 padded to a multiple of 128 x 2
    assert "train.sh" in found.files


def test_instances_of_the_optimizer_are_read(tmp_path: Path) -> None:
    inline = (
        "{micro_batch_size: 1, bf16: true, use_distributed_optimizer: true, "
        "num_distributed_optimizer_instances: 4}"
    )
    plan = build_job(scenario(tmp_path, inline)).plan
    assert plan.megatron.num_distributed_optimizer_instances == 4


def test_how_gradients_are_summed_is_read(tmp_path: Path) -> None:
    inline = (
        "{micro_batch_size: 1, bf16: true, grad_reduce_in_bf16: true, "
        "ddp_average_in_collective: true}"
    )
    settings = build_job(scenario(tmp_path, inline)).plan.megatron
    assert settings.ddp_average_in_collective
    assert not settings.accumulate_allreduce_grads_in_fp32


def test_arguments_in_place_replay(tmp_path: Path) -> None:
    inline = "{micro_batch_size: 1, fp16: true, pipeline_model_parallel_size: 2}"
    found = scenario(tmp_path, inline)
    plan = build_job(found).plan
    assert plan.mesh == Mesh(pp=2, dp=4)
    assert plan.precision == "fp16"
    assert found.resolved()["jobs"][0]["train"]["megatron"]["pipeline_model_parallel_size"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bf16", "train.sh:1:1   micro_batch_size is required"),
        ("--micro-batch-size $MBS", r"train.sh:1:20   micro_batch_size: .* what MBS is"),
        ("--micro-batch-size two", r"train.sh:1:20   micro_batch_size: expected a count"),
        ("--micro-batch-size 1 --bf16 --fp16", "give bf16 or fp16, not both"),
        ("--micro-batch-size 1 --overlap-param-gather", "needs use_distributed_optimizer"),
        ("--micro-batch-size 1 --tp-comm-overlap", "needs sequence_parallel"),
        (
            "--micro-batch-size 1 --defer-embedding-wgrad-compute",
            "needs pipeline_model_parallel_size > 1",
        ),
        (
            "--micro-batch-size 1 --num-distributed-optimizer-instances 2",
            "num_distributed_optimizer_instances needs use_distributed_optimizer",
        ),
        ("--micro-batch-size 1 --tensor-model-parallel-size 3", "not divisible by tp 3"),
        ("--micro-batch-size 1 --expert-model-parallel-size 3", "does not divide dp x cp: 8"),
        ("--micro-batch-size 3 --global-batch-size 25", r"train.sh:1:42 .*not a multiple of"),
        ("--micro-batch-size 1 --optimizer nadamw", "train.sh:1:34   optimizer"),
        ("no flags at all", "has no --arguments"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_it_stands(
    tmp_path: Path, arguments: str, message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(tmp_path, "train.sh", arguments + "\n")


def test_experts_are_divided_by_their_degree(tmp_path: Path) -> None:
    made = scenario(
        tmp_path, "train.sh", "--micro-batch-size 1 --expert-model-parallel-size 8 --bf16\n"
    )  # fmt: skip
    with pytest.raises(ScenarioError, match="parallel_size 8 does not divide a model without"):
        build_job(made)
    config = json.loads(CONFIG) | {"model_type": "mixtral", "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 8}))
    assert build_job(load(tmp_path)).plan.mesh.ep == 8  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 4}))
    with pytest.raises(ScenarioError, match="size 8 does not divide the 4 experts of a layer"):
        build_job(load(tmp_path))  # type: ignore[arg-type]


def test_what_matters_and_is_not_simulated_is_a_warning(tmp_path: Path) -> None:
    found = scenario(
        tmp_path, "train.sh", "--micro-batch-size 1 --fp4-format e2m1 --log-interval 1"
    )
    assert [w.key for w in found.warnings] == ["fp4_format"]


def test_recomputed_modules_and_the_flex_dispatcher(tmp_path: Path) -> None:
    script = (
        "--micro-batch-size 1 --moe-token-dispatcher-type flex --recompute-granularity selective "
        "--recompute-modules layernorm moe_act shared_experts\n"
    )
    found = scenario(tmp_path, "train.sh", script)
    settings = build_job(found).plan.megatron
    assert settings.moe_token_dispatcher == "flex"
    assert settings.recompute_modules[:2] == ("layernorm", "moe_act")
    (warning,) = found.warnings
    assert "recomputing shared_experts" in warning.message
    plain = build_job(scenario(tmp_path, "train.sh", "--micro-batch-size 1\n")).plan.megatron
    assert plain.recompute_modules == ("core_attn",)


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        ("", "megatron_1f1b"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 4", "zb_h1"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 8", "zb_h2"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward auto", "zb_h2"),
        ("--zero-bubble-v-schedule", "zb_v"),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half", "v_half"),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup min", "v_min"),
    ],
)
def test_zero_bubble_arguments_of_the_papers_fork(
    tmp_path: Path, arguments: str, schedule: str
) -> None:
    text = f"--micro-batch-size 1 --global-batch-size 16 --bf16 --seq-length 64 {arguments} "
    found = scenario(tmp_path, "train.sh", text + "--pipeline-model-parallel-size 4")
    assert found.strategy.pipeline.schedule == schedule
    other = "--enable-zero-bubble --zero-bubble-max-pending-backward 6"
    text = f"--micro-batch-size 1 --pipeline-model-parallel-size 4 {other}"
    with pytest.raises(ScenarioError, match=r"6 is not simulated; use 4 \(ZB-H1\) or 8"):
        scenario(tmp_path, "train.sh", text)


def test_keys_with_names_of_their_own_in_megatron(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("--micro-batch-size 1")
    (tmp_path / "config.json").write_text(CONFIG)
    text = SCENARIO.format(megatron="train.sh").replace("steps", "micro_batch: 2, steps")
    (tmp_path / "scenario.yaml").write_text(text)
    with pytest.raises(
        ScenarioError, match="belongs into Megatron's arguments, as micro_batch_size"
    ):
        load(tmp_path)


def test_families_megatron_lacks(tmp_path: Path) -> None:
    found = scenario(tmp_path, "train.sh", "--micro-batch-size 1")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ScenarioError, match="t5 is not modelled in Megatron-core"):
        build_job(load(tmp_path))  # type: ignore[arg-type]
    assert found.name == "megatron"


def test_weight_gradients_put_off_and_models_of_megatrons_own(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"model_type": "megatron_gpt", "num_layers": 4}')
    scenario(
        tmp_path,
        "{pipeline_model_parallel_size: 2, micro_batch_size: 1, global_batch_size: 8, bf16: true, "
        "defer_embedding_wgrad_compute: true, wgrad_deferral_limit: 3}",
    )
    text = (tmp_path / "scenario.yaml").read_text().replace("config.json", "own.json")
    (tmp_path / "scenario.yaml").write_text(text)
    job = build_job(load(tmp_path))  # type: ignore[arg-type]
    assert job.plan.megatron.wgrad_deferral_limit == 3
    assert job.plan.megatron.defer_embedding_wgrad_compute
    assert job.plan.model.layers[1].cls == "TransformerLayer"
