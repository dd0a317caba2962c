"""Training with RLlib by numbers, as a scenario says it (``workloads.rl_job``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysim.scenario.quantities import Bytes, BytesPerSecond, PositiveCount, Seconds, Share
from raysim.scenario.section import Section

Few = Annotated[int, Field(ge=1, le=1_000_000)]
Quantity = Annotated[float, Field(ge=0, le=1e18)]


class EnvSection(Section):
    """The simulator."""

    step: Seconds = Field(description="One step of one environment on one core, such as 2ms.")
    sample_cv: Share = Field(0.0, description="How much the times of samples differ.")
    observation: Bytes = Field(1_000, description="What a step adds to an episode.")


class PolicySection(Section):
    """The model."""

    weights: Bytes = Field(1_000_000, description="What is broadcast.")
    forward: Seconds = Field(0.5e-3, description="One forward pass of an env runner.")
    step: Seconds | None = Field(
        None, description="One gradient step on minibatch_size samples; else it follows from FLOPs."
    )
    flops_per_sample: Quantity = Field(1e8, description="Forward and backward.")
    flops_per_s: Annotated[float, Field(gt=0, le=1e18)] = Field(
        5e12, description="What a learner reaches."
    )
    allreduce: BytesPerSecond | None = Field(
        None, description="Gradients between learners; 5 GB/s by default."
    )


class RlSection(Section):
    """PPO or IMPALA; what is not said is RLlib's default."""

    algorithm: Literal["PPO", "IMPALA"] = Field(description="Which.")
    env_steps: PositiveCount = Field(description="Train on so many, such as 1M.")
    env: EnvSection = Field(description="The simulator.")
    model: PolicySection = Field(default_factory=PolicySection, description="The policy.")
    env_runners: Few | None = Field(None, description="num_env_runners.")
    envs_per_env_runner: Few | None = Field(None, description="num_envs_per_env_runner.")
    cpus_per_env_runner: Quantity | None = Field(None, description="num_cpus_per_env_runner.")
    rollout_fragment_length: Few | None = Field(
        None, description="Steps of each environment per sample."
    )
    train_batch_size: Few | None = Field(None, description="Env steps per update.")
    epochs: Few | None = Field(None, description="num_epochs.")
    minibatch_size: Few | None = Field(None, description="Of a learner.")
    learners: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="num_learners; 0: the driver updates."
    )
    gpus_per_learner: Quantity | None = Field(None, description="num_gpus_per_learner.")
    sample_timeout: Seconds | None = Field(None, description="PPO: later samples are dropped.")
    broadcast_interval: Few | None = Field(None, description="IMPALA: updates between broadcasts.")
    aggregators_per_learner: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="IMPALA: num_aggregator_actors_per_learner."
    )
    restart_failed_env_runners: bool | None = Field(None, description="Ray starts them again.")
