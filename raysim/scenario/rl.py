"""An ``rl`` section as a spec of ``workloads.rl_job``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.raylibs.rllib.config import IMPALA, PPO, EnvSpec, ModelSpec
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_rl import RlSection
from raysim.workloads.rl_job import RlJob

_NAMES = {
    "env_runners": "num_env_runners", "envs_per_env_runner": "num_envs_per_env_runner",
    "cpus_per_env_runner": "num_cpus_per_env_runner", "epochs": "num_epochs",
    "learners": "num_learners", "gpus_per_learner": "num_gpus_per_learner",
    "sample_timeout": "sample_timeout_s",
    "aggregators_per_learner": "num_aggregator_actors_per_learner",
}  # fmt: skip
"""Of RLlib, where the scenario's name is another."""
_OTHERS = ("algorithm", "env_steps", "env", "model")


def read_rl(
    said: RlSection, at: KeyPath, _folder: Path, document: Document,
    _inputs: dict[KeyPath, Path],
) -> RlJob:  # fmt: skip
    """The job.

    Raises
    ------
    ScenarioError
        IMPALA without learners.
    """
    exchange: dict[str, Any] = (
        {"allreduce_bytes_per_s": said.model.allreduce} if said.model.allreduce else {}
    )
    given: dict[str, Any] = {
        _NAMES.get(key, key): value
        for key in type(said).model_fields
        if key not in _OTHERS and (value := getattr(said, key)) is not None
    }
    config = replace(
        IMPALA if said.algorithm == "IMPALA" else PPO,
        env=EnvSpec(
            step_s=said.env.step, sample_cv=said.env.sample_cv,
            observation_bytes=said.env.observation,
        ),
        model=ModelSpec(
            weights_bytes=said.model.weights, forward_s=said.model.forward, step_s=said.model.step,
            flops_per_sample=said.model.flops_per_sample, flops_per_s=said.model.flops_per_s,
            **exchange,
        ),
        **given,
    )  # fmt: skip
    if said.algorithm == "IMPALA" and not config.num_learners:
        raise ScenarioError(
            document.problem((*at, "learners"), "IMPALA's learners are actors: give at least 1")
        )
    return RlJob(config=config, env_steps=said.env_steps)
