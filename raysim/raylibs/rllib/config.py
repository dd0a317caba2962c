"""What an algorithm does and what its parts cost, by RLlib's names with RLlib's defaults.

Real counterpart: ``ray/rllib/algorithms/algorithm_config.py``, ``ppo/ppo.py``, ``impala/impala.py``
(ray 2.60). Costs of environment and model are the user's, or follow from FLOPs.

Not modelled: evaluation, offline data, multi-agent, learning itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """A simulator.

    Parameters
    ----------
    step_s
        One step of one environment on one core, with its preprocessing.
    sample_cv
        Coefficient of variation of what one ``sample()`` takes, over runners and rounds.
    observation_bytes
        What one step adds to an episode: observation, action, reward, logits.
    """

    step_s: float = 1e-3
    sample_cv: float = 0.0
    observation_bytes: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A policy.

    Parameters
    ----------
    weights_bytes
        What is broadcast.
    forward_s
        One forward pass of an env runner, for all its environments together.
    step_s
        One gradient step of a learner on ``minibatch_size`` samples, without exchange of
        gradients; None: from ``flops_per_sample`` (forward and backward) at
        ``flops_per_s``, plus ``launch_s``.
    allreduce_bytes_per_s
        Of gradients between learners: 2 (n - 1) / n of the weights go over it.
    """

    weights_bytes: int = 1_000_000
    forward_s: float = 0.5e-3
    step_s: float | None = None
    flops_per_sample: float = 1e8
    flops_per_s: float = 5e12
    launch_s: float = 2e-3
    allreduce_bytes_per_s: float = 5e9

    def gradient_step_s(self, samples: float, learners: int) -> float:
        """One step of each of ``learners`` on so many samples."""
        step_s = self.step_s
        if step_s is None:
            step_s = self.launch_s + samples * self.flops_per_sample / self.flops_per_s
        share = 2 * (learners - 1) / learners
        return step_s + share * self.weights_bytes / self.allreduce_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RLlibCosts:
    """Seconds of RLlib's own Python; assumed where nothing is said."""

    import_core_s: float = 5.0
    """An actor imports RLlib and torch, builds environment and module."""
    request_s: float = 0.3e-3
    """The driver handles one runner's answer: metrics, connector states."""
    episode_core_s_per_byte: float = 2e-10
    """The learner's connector copies episodes into batches (5 GB/s of one core)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """PPO or IMPALA.

    Parameters
    ----------
    algorithm
        Which.
    num_env_runners, num_envs_per_env_runner, num_cpus_per_env_runner
        Samplers.
    rollout_fragment_length
        Steps of each environment per ``sample()``; None: so that one round makes a batch.
    train_batch_size
        Env steps per update, of all learners together.
    num_epochs, minibatch_size
        Of one update; ``minibatch_size`` is a learner's.
    num_learners, num_gpus_per_learner
        0 learners: the driver updates.
    sample_timeout_s
        PPO: what comes later is dropped.
    broadcast_interval
        IMPALA: updates between two broadcasts of weights.
    learner_queue_size, max_requests_in_flight_per_learner
        IMPALA: what does not fit is dropped.
    num_aggregator_actors_per_learner
        IMPALA: they make batches of episodes; 0: the learner does.
    restart_failed_env_runners, env_runner_health_probe_timeout_s
        A failed one is started again by Ray; PPO waits so long for it after each iteration.
    min_time_s_per_iteration
        IMPALA: of a reported iteration.
    """

    algorithm: Literal["PPO", "IMPALA"] = "PPO"
    env: EnvSpec = field(default_factory=EnvSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    num_env_runners: int = 2
    num_envs_per_env_runner: int = 1
    num_cpus_per_env_runner: float = 1
    rollout_fragment_length: int | None = None
    train_batch_size: int = 4000
    num_epochs: int = 30
    minibatch_size: int | None = 128
    num_learners: int = 0
    num_gpus_per_learner: float = 0
    num_cpus_per_learner: float = 1
    sample_timeout_s: float = 60.0
    max_requests_in_flight_per_env_runner: int = 1
    broadcast_interval: int = 1
    learner_queue_size: int = 3
    max_requests_in_flight_per_learner: int = 3
    num_aggregator_actors_per_learner: int = 0
    max_requests_in_flight_per_aggregator_actor: int = 3
    restart_failed_env_runners: bool = True
    env_runner_health_probe_timeout_s: float = 30.0
    min_time_s_per_iteration: float = 0.0
    costs: RLlibCosts = field(default_factory=RLlibCosts)

    @property
    def fragment(self) -> int:
        """``get_rollout_fragment_length``."""
        if self.rollout_fragment_length is not None:
            return self.rollout_fragment_length
        envs = self.num_envs_per_env_runner * max(self.num_env_runners, 1)
        return ceil(self.train_batch_size / envs)

    @property
    def sample_steps(self) -> int:
        """Env steps of one ``sample()``."""
        return self.fragment * self.num_envs_per_env_runner

    @property
    def sample_core_s(self) -> float:
        """One ``sample()`` on a core, in the mean."""
        return self.sample_steps * self.env.step_s + self.fragment * self.model.forward_s

    @property
    def sample_bytes(self) -> int:
        """What it returns."""
        return self.sample_steps * self.env.observation_bytes

    def update_s(self, steps: int) -> float:
        """One update of all learners on so many env steps."""
        learners = max(self.num_learners, 1)
        of_each = steps / learners
        of_a_step = min(self.minibatch_size or of_each, of_each)
        count = self.num_epochs * ceil(of_each / of_a_step)
        return count * self.model.gradient_step_s(of_a_step, learners)


PPO = AlgorithmConfig()
"""``PPOConfig()``; others are ``replace``d."""
IMPALA = AlgorithmConfig(
    algorithm="IMPALA", rollout_fragment_length=50, train_batch_size=500, num_epochs=1,
    minibatch_size=None, num_learners=1, num_gpus_per_learner=1, min_time_s_per_iteration=10.0,
)  # fmt: skip
"""``IMPALAConfig()``."""
