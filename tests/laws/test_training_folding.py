"""A deep model's step from two shallow ones: as close as its docstring says, and far cheaper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.training.folding import fold_of, folded_step_s, repeating
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from raysim.units import to_seconds
from tests.training_parts import cluster, plan

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
STAGES = PipelineSettings(schedule="megatron_1f1b", partition_method="blocks")
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "fsdp": {"engine": "fsdp"},
    "megatron": {
        "engine": "megatron", "mesh": Mesh(dp=2, pp=2, tp=4), "pipeline": STAGES,
        "gradient_accumulation_steps": 8,
    },
}  # fmt: skip


def model(name: str) -> Model:
    """One of the published configs, 2,048 tokens long."""
    return build(json.loads((CONFIGS / f"{name}.json").read_text()), seq_len=2048)


def made(name: str, engine: str) -> TrainingPlan:
    """Sixteen GPUs."""
    options = {"mesh": Mesh(dp=16), "activation_checkpointing": "full"} | ENGINES[engine]
    return plan(model(name), **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-70b", "gemma-2-9b", "qwen3-30b-a3b"])
def test_two_depths_tell_a_deep_models_step(name: str, engine: str) -> None:
    deep = made(name, engine)
    fold = fold_of(deep)
    assert fold is not None
    assert fold.shallow + fold.deep < fold.layers / 1.9
    whole = simulate(deep, cluster(), simulation=Simulation(), memory=False)
    expected = to_seconds(whole.steady_step_ns)
    assert folded_step_s(deep, cluster()) == pytest.approx(expected, rel=0.03)


def test_what_repeats_is_found_behind_what_does_not() -> None:
    dense_first = model("deepseek-v3").layers
    assert repeating(dense_first) == (4, 58, 1)  # an embedding, three dense layers, then experts
    by_turns = model("gemma-2-9b").layers
    assert repeating(by_turns) == (1, 42, 2)  # local and global attention
    assert repeating(by_turns[:3]) == (0, 0, 1)


def test_a_pipeline_loses_as_many_layers_on_every_stage() -> None:
    deep = made("llama-3.1-70b", "megatron")
    fold = fold_of(deep)
    assert fold is not None
    assert fold.shallow % 2 == fold.deep % 2 == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"pipeline": replace(STAGES, layers_per_stage=(30, 50))},
        {"pipeline": replace(STAGES, num_layers_in_last_pipeline_stage=38)},
        {"recompute_layers": 3},
        {"model": model("qwen2.5-0.5b")},
    ],
    ids=["layers_per_stage", "uneven", "recompute_layers", "small"],
)
def test_what_does_not_fold_is_played(changed: dict[str, Any]) -> None:
    whole = replace(made("llama-3.1-70b", "megatron"), **changed)
    assert fold_of(whole) is None


def test_without_a_fold_it_is_the_step_itself() -> None:
    small = plan(model("qwen2.5-0.5b"), mesh=Mesh(dp=16), engine="fsdp")
    whole = simulate(small, cluster(), simulation=Simulation(), memory=False)
    assert folded_step_s(small, cluster()) == to_seconds(whole.steady_step_ns)
