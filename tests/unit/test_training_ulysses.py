"""DeepSpeed's Ulysses: collectives of real steps, laws, and what its JSON may say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.models.table import Model
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome
from raysim.validate.training_cases import _calls, play
from tests.training_parts import cluster, llama, plan
from tests.training_parts import play as play_plan
from tests.unit.test_scenario_deepspeed import read
from tests.unit.test_scenario_deepspeed import refused as json_refused
from tests.unit.test_scenario_fsdp import MODEL

FILE = Path(__file__).resolve().parents[2] / "validation/data/deepspeed_cpu/ulysses.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
SCALAR_BYTES = 64
"""Losses and token counts, whose gradients gloo passes on otherwise than NCCL."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_collectives_are_those_of_real_ranks(case: dict[str, Any]) -> None:
    """Counts and bytes, forward, backward and step, of everything but scalars."""
    outcome = play(case, steps=3)
    ours = _calls(outcome.slowest.program)
    theirs: Counter[tuple[str, int]] = Counter()
    for _, op, size, times in case["records"][0]["collectives"]:
        theirs[op, size] += times
    large = [Counter({k: n for k, n in c.items() if k[1] > SCALAR_BYTES}) for c in (ours, theirs)]
    assert large[0] == large[1]


def long(seq_len: int = 4096) -> Model:
    return llama(layers=2, hidden=1024, seq_len=seq_len)


def of(mesh: Mesh, model: Model | None = None, stage: int = 2, **options: Any) -> StepOutcome:
    return play_plan(plan(model or long(), stage=stage, mesh=mesh, **options), cluster(1))


def test_a_sequence_over_more_ranks_takes_less_memory_each() -> None:
    """A quarter each over four ranks, states aside, which replicas share already."""
    alone, shared = (of(Mesh(dp=8 // s, cp=s)).fullest.by_category for s in (1, 4))
    assert shared["activation"] == pytest.approx(alone["activation"] / 4, rel=0.05)
    assert shared["optimizer_state"] == alone["optimizer_state"]


def test_bytes_exchanged_are_four_tensors_each_way() -> None:
    """Queries, keys, values and outputs, each rank's part, whatever the number of ranks."""
    model = long()
    for ranks in (2, 4, 8):
        line = of(Mesh(dp=8 // ranks, cp=ranks), model).slowest
        calls = _calls(line.program)
        swapped = {key: n for key, n in calls.items() if key[0] == "all_to_all"}
        part = 2 * model.seq_len * 1024 * 2 // ranks
        assert swapped == {("all_to_all", part): 2 * 2 * 8}


def test_heads_of_keys_are_repeated_where_there_are_too_few() -> None:
    config = {**MODEL, "num_attention_heads": 8, "num_key_value_heads": 2}
    made = build_job(scenario({"sequence_parallel_size": 4}, model=config)).plan
    sizes = [e.call.size_bytes for e in play_plan(made, cluster(1)).slowest.program.ops
             if e.call is not None and e.call.op == "all_to_all"]  # fmt: skip
    # 64 tokens over 4 ranks, fp32: 8 heads of 32 elements, and 2 heads repeated to 4.
    assert set(sizes) == {16 * 8 * 32 * 4, 16 * 4 * 32 * 4}


def test_zero_shards_over_replicas_and_sequence_ranks_alike() -> None:
    """The states of ZeRO-3 on 8 ranks, however many of them share a sequence."""
    held = [of(Mesh(dp=8 // s, cp=s), stage=3).slowest.program.step_held[-1] for s in (1, 8)]
    assert held[0]["optimizer_state"] == held[1]["optimizer_state"]
    assert held[0]["parameter"] == held[1]["parameter"]


def scenario(
    config: dict[str, Any], model: Any = None, attention: str | None = None, **train: Any
) -> Scenario:
    json_ = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}} | config
    found = from_mapping(
        {
            "cluster": {"node": "hgx-h100-8", "nodes": 1},
            "model": {"from": model or MODEL} | ({"attention": attention} if attention else {}),
            "jobs": [{"train": {"deepspeed": json_, "seq_len": 64, "steps": 2} | train}],
        }
    )
    assert isinstance(found, Scenario)
    return found


def refused(config: dict[str, Any], model: Any = None, **options: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        build_job(scenario(config, model, **options))
    return str(caught.value)


def test_the_batch_triangle_counts_replicas_of_sequences() -> None:
    made = build_job(scenario({"sequence_parallel_size": 4})).plan
    assert (made.mesh.dp, made.mesh.cp, made.samples_per_step) == (2, 4, 2)
    assert made.communication_data_type == "fp32"
    assert "24 != 1 * 1 * 2" in refused(
        {"sequence_parallel_size": 4, "train_batch_size": 24, "gradient_accumulation_steps": 1}
    )


def test_gradients_travel_in_the_type_of_their_own_key() -> None:
    wire = {"seq_parallel_communication_data_type": "bf16", "sequence_parallel_size": 2}
    zero3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_batch_size": 8}
    assert read(wire | zero3).config.communication_data_type == "bf16"
    forced = wire | zero3 | {"zero_optimization": {"stage": 1}}
    assert read(forced).config.communication_data_type == "fp32"
    assert read(zero3).config.communication_data_type is None


def test_what_ulysses_cannot_do_is_refused() -> None:
    few = MODEL | {"num_attention_heads": 4, "num_key_value_heads": 4}
    assert "8 does not divide 4 attention heads" in refused({"sequence_parallel_size": 8}, few)
    three = MODEL | {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 384}
    assert "3 heads of keys: one must" in refused({"sequence_parallel_size": 2}, three)
    assert "eager has a 4D mask" in refused({"sequence_parallel_size": 2}, attention="eager")
    hybrid = {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "architectures": None}
    assert "keep a state would each start it anew" in refused({"sequence_parallel_size": 2}, hybrid)
    assert "does not divide seq_len 63" in refused({"sequence_parallel_size": 2}, seq_len=63)
    assert "8 workers are not divisible by sequence_parallel_size 3" in refused(
        {"sequence_parallel_size": 3}
    )
    base = {"train_batch_size": 8, "sequence_parallel_size": 2}
    assert "PipelineModule" in json_refused(base, pipeline_stages=2)
    assert "tensor parallelism" in json_refused(base, tensor_parallel=2)
    assert "whole number of at least 1" in json_refused(base | {"sequence_parallel_size": 0})
    assert "3 x sequence_parallel_size 2 is not 4" in json_refused(base | {"data_parallel_size": 3})
