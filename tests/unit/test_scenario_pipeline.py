"""Pipelines in a scenario: which schedules run on what, and errors that name key and fix."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping, load
from raysim.training.pipeline.partition import stage_bounds
from raysim.training.stages import pipeline_of

CONFIG = json.loads(
    (Path(__file__).parents[1] / "data" / "malformed" / "base" / "config.json").read_text()
) | {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 512}
SCENARIO = """
cluster: {nodes: 2, node: hgx-h100-8}
model: {from: config.json}
jobs:
  - train:
      seq_len: 256
      micro_batch: 1
      gradient_accumulation_steps: 8
      precision: bf16
      steps: 2
      pipeline: {stages: 4, PIPELINE}
"""


def inline(pipeline: dict[str, Any], **train: Any) -> Scenario:
    """Sixteen GPUs, eight blocks, no DeepSpeed."""
    said = {"seq_len": 256, "micro_batch": 1, "gradient_accumulation_steps": 8, "precision": "bf16"}
    return from_mapping(
        {
            "cluster": {"nodes": 2, "node": "hgx-h100-8"},
            "model": {"from": CONFIG},
            "jobs": [{"train": said | {"steps": 2, "pipeline": {"stages": 4} | pipeline} | train}],
        }
    )


@pytest.mark.parametrize(
    ("pipeline", "exchange", "chunks"),
    [
        ({"schedule": "gpipe"}, "asynchronous", 1),
        ({"schedule": "megatron_1f1b"}, "batched", 1),
        ({"schedule": "interleaved", "virtual_stages": 2}, "asynchronous", 2),
        ({"schedule": "interleaved", "virtual_stages": 2, "overlap_p2p_comm": False}, "batched", 2),
        ({"schedule": "zb_h1"}, "asynchronous", 1),
        ({"schedule": "zb_v"}, "asynchronous", 2),
        ({"schedule": "dualpipe_v"}, "asynchronous", 2),
        ({"schedule": "dualpipe"}, "asynchronous", 2),
    ],
)
def test_every_schedule_runs_without_deepspeed(
    pipeline: dict[str, Any], exchange: str, chunks: int
) -> None:
    scenario = inline(pipeline)
    plan = build_job(scenario).plan
    made = pipeline_of(plan)
    assert (plan.engine, plan.mesh.pp, plan.mesh.dp) == ("ddp", 4, 4)
    assert (made.exchange, made.layout.chunks) == (exchange, chunks)
    assert not plan.pipeline.pipe_partitioned
    result = raysim.run(scenario)
    assert f"pp 4 {pipeline['schedule']}" in result.summary["job"]["strategy"]
    if chunks == 1:  # of the others, launches of so small a model hide it on the slowest rank
        rows = {row["key"]: row for row in result.summary["step"]["breakdown"]}
        assert rows["bubble"]["name"] == "pipeline bubble"
    again = from_mapping(scenario.resolved())
    assert build_job(again).plan.pipeline == plan.pipeline


def test_uneven_stages() -> None:
    def blocks(**pipeline: Any) -> list[int]:
        plan = build_job(inline(pipeline)).plan
        bounds = stage_bounds(
            plan.model.layers, plan.pipeline, 4, pipeline_of(plan).layout.depth // 4
        )
        kinds = [layer.kind == "block" for layer in plan.model.layers]
        return [sum(kinds[a:b]) for a, b in itertools.pairwise(bounds)]

    loop = {"schedule": "interleaved", "virtual_stages": 2}
    assert blocks(**loop) == [1] * 8
    assert blocks(schedule="zb_h1", layers_per_stage=[1, 3, 3, 1]) == [1, 3, 3, 1]
    assert blocks(schedule="zb_h1", layers_per_stage=[0, 4, 4, 0]) == [0, 4, 4, 0]
    first = {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 1}
    assert blocks(schedule="megatron_1f1b", **first) == [1, 3, 3, 1]


def problem(pipeline: str) -> str:
    """The one problem of the scenario with that pipeline."""
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("scenario.yaml").write_text(SCENARIO.replace("PIPELINE", pipeline))
    with pytest.raises(ScenarioError) as caught:
        build_job(load(Path("scenario.yaml")))
    (found,) = caught.value.problems
    return str(found)


@pytest.mark.parametrize(
    ("pipeline", "where", "message"),
    [
        ("partition_method: uniform", "11:7   train.pipeline",
         "needs DeepSpeed's engine and its JSON, or a schedule: gpipe, megatron_1f1b"),
        ("schedule: 1f1b", "11:39   train.pipeline.schedule",
         "DeepSpeed's PipelineModule runs it and needs its JSON; without it: gpipe"),
        ("schedule: interleaved", "train.pipeline.virtual_stages",
         "interleaved needs 2 or more stages per rank"),
        ("schedule: zb_v, virtual_stages: 3", "11:61   train.pipeline.virtual_stages",
         "zb_v has 2 per rank, not 3"),
        ("schedule: interleaved, virtual_stages: 2, microbatch_group_size_per_vp_stage: 5",
         "train.pipeline.microbatch_group_size_per_vp_stage", "leave 3 of groups of 5"),
        ("schedule: interleaved, virtual_stages: 3", "11:26   train.pipeline.stages",
         "2 layers of rank 0 do not divide into 3 stages; give layers_per_stage"),
        ("schedule: zb_h1, layers_per_stage: [1, 2, 3]", "train.pipeline.layers_per_stage",
         "has 3 entries, there are 4 stages"),
        ("schedule: zb_h1, layers_per_stage: [1, 2, 3, 4]", "train.pipeline.layers_per_stage",
         "has 10 layers, the model 8"),
        ("schedule: zb_h1, layers_per_stage: [4, 0, 0, 4]", "train.pipeline.layers_per_stage",
         "leave a stage empty"),
        ("schedule: zb_h1, num_layers_in_first_pipeline_stage: 1", "train.pipeline.stages",
         "7 layers do not divide over 3 ranks"),
        ("schedule: fastest", "11:39   train.pipeline.schedule", "interleaved"),
    ],
)  # fmt: skip
def test_problems_name_the_key_and_the_fix(
    pipeline: str, where: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = problem(pipeline)
    assert found.startswith("scenario.yaml:")
    assert where in found
    assert message in found
