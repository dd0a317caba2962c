"""What an algorithm does and what its parts cost, by RLlib's names with RLlib's defaults.

Real counterpart: ``ray/rllib/algorithms/algorithm_config.py`` and ``ppo/ppo.py``,
``impala/impala.py``, ``dqn/dqn.py`` (ray 2.60). Costs of environment and model are the user's, or
follow from FLOPs; a program that runs unmodified brings its environments (``UserEnv``) and has its
modules priced where they run.

Not modelled: offline data, multi-agent, learning itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Literal, Protocol

from raysim.raycore.ids import PlacementGroupID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script

ROUNDING = 1e-9
"""Of a quotient that is a whole number."""


class UserEnv(Protocol):
    """The environments of one env runner, in its process."""

    def make(self) -> Script:
        """Create them; a TaskError if the user's code fails."""

    def sample(self, count: int) -> Script:
        """Step each of them so often: how often the module was asked, resets included."""

    def evaluate(self, episodes: int) -> Script:
        """Whole episodes: (env steps, how often the module was asked)."""

    @property
    def agents(self) -> float:
        """That act in an env step of one environment, in the mean."""


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
    on_cores: bool = False
    """The update is work of the learner's node, not a wait for its GPU."""
    step_bytes: int | None = None
    """What an env step adds to an episode, where the environment tells; else ``EnvSpec``'s."""

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
    learner_core_s: float = 0.0
    """A learner builds its module and connectors; its first optimizer loads torch's compiler."""
    request_s: float = 0.3e-3
    """The driver handles one runner's answer: metrics, connector states."""
    learner_request_s: float = 0.0
    """The same of learners' answers, to updates and for weights."""
    episode_core_s_per_byte: float = 2e-10
    """The learner's connector copies episodes into batches (5 GB/s of one core)."""
    vector_step_core_s: float = 0.0
    """An env runner's connectors and wrappers around one pass of its module."""
    env_step_core_s: float = 0.0
    """The same for each of its environments, with what an episode keeps of a step."""
    sample_core_s: float = 0.0
    """An env runner's answer to one request: metrics, states of connectors, episodes as arrays."""
    train_step_core_s: float = 0.0
    """The learner's connectors, of one env step: batches, advantages."""
    gradient_step_core_s: float = 0.0
    """The learner around one gradient step: its share of the batch, losses, metrics."""
    iteration_core_s: float = 0.0
    """The driver in each ``train()``: metrics, states of connectors."""
    sync_core_s: float = 0.0
    """The driver takes the learner's weights, and brings them to its own env runner."""
    store_core_s: float = 0.0
    """Of DQN's driver: what a round has sampled goes into the replay buffer; its metrics."""
    store_fragment_core_s: float = 0.0
    """The same, of each environment's part of it."""
    replay_core_s: float = 0.0
    """The same: a batch is taken from it."""
    replay_item_core_s: float = 0.0
    """The same, of each item, which becomes an episode of one step."""
    priority_core_s: float = 0.0
    """The same: an item has another priority."""
    ship_item_core_s: float = 0.0
    """The same: an item on its way to a learner that is an actor is pickled."""
    polling_cores: float = 0.0
    """The driver of IMPALA asks again and again, and keeps so many cores busy with it."""

    def at_speed(self, core_speed: float) -> RLlibCosts:
        """The same code on cores so many times as fast."""
        work = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "polling_cores"}
        return replace(self, **{name: seconds / core_speed for name, seconds in work.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """PPO, IMPALA, APPO, DQN or SAC.

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
    ignore_env_runner_failures
        Otherwise: the rest goes on; or training fails.
    complete_episodes
        ``batch_mode``: a sample is an episode of each environment, however long.
    min_time_s_per_iteration, min_sample_steps_per_iteration, min_train_steps_per_iteration
        Of a reported iteration: training steps go on until all are reached.
    iterations_per_batch
        APPO's circular buffer: so often a batch is trained on.
    learning_starts, training_intensity, target_update_freq, prioritized_replay
        DQN and SAC: env steps sampled before the first update; env steps trained on per env step
        sampled (None: one batch after each round); env steps sampled between two copies of the
        networks; whether the replay buffer keeps priorities.
    env_runner_resources, learner_resources
        Custom ones.
    placement_group
        Of a trial of Ray Tune: where its actors go.
    make_env
        The program's own environments, by process and index of the runner (0: the driver).
    fullest
        Of a program's several agents: samples of the module that has most, of so many env steps
        and what the learner adds to each agent's.
    price
        What the module costs where a process runs, instead of ``model``.
    """

    algorithm: Literal["PPO", "IMPALA", "APPO", "DQN", "SAC"] = "PPO"
    env: EnvSpec = field(default_factory=EnvSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    num_env_runners: int = 2
    num_envs_per_env_runner: int = 1
    num_cpus_per_env_runner: float = 1
    num_gpus_per_env_runner: float = 0
    env_runner_resources: Mapping[str, float] = field(default_factory=dict)
    rollout_fragment_length: int | None = None
    complete_episodes: bool = False
    train_batch_size: int = 4000
    num_epochs: int = 30
    minibatch_size: int | None = 128
    num_learners: int = 0
    num_gpus_per_learner: float = 0
    num_cpus_per_learner: float = 1
    learner_resources: Mapping[str, float] = field(default_factory=dict)
    sample_timeout_s: float = 60.0
    max_requests_in_flight_per_env_runner: int = 1
    broadcast_interval: int = 1
    learner_queue_size: int = 3
    max_requests_in_flight_per_learner: int = 3
    num_aggregator_actors_per_learner: int = 0
    max_requests_in_flight_per_aggregator_actor: int = 3
    iterations_per_batch: int = 1
    learning_starts: int = 0
    training_intensity: float | None = None
    target_update_freq: int = 0
    prioritized_replay: bool = True
    restart_failed_env_runners: bool = True
    ignore_env_runner_failures: bool = True
    max_num_env_runner_restarts: int = 1000
    env_runner_health_probe_timeout_s: float = 30.0
    min_time_s_per_iteration: float = 0.0
    min_sample_steps_per_iteration: int = 0
    min_train_steps_per_iteration: int = 0
    placement_group: PlacementGroupID | None = None
    make_env: Callable[[CoreProcess, int], UserEnv] | None = None
    fullest: Callable[[int, int], int] | None = None
    price: Callable[[CoreProcess], ModelSpec] | None = None
    costs: RLlibCosts = field(default_factory=RLlibCosts)

    def fragment(self, index: int) -> int:
        """``get_rollout_fragment_length`` of a runner: the first ones take what is left over."""
        if self.rollout_fragment_length is not None:
            return self.rollout_fragment_length
        envs = self.num_envs_per_env_runner
        each, left = divmod(self.train_batch_size, envs * max(self.num_env_runners, 1))
        return max(1, each + (left > max(0, index - 1) * envs))

    def samples(self, steps: int, added: int) -> int:
        """Of a batch: what gradient steps go through."""
        return steps + added if self.fullest is None else self.fullest(steps, added)

    @property
    def round_robin(self) -> tuple[int, int]:
        """Of DQN's training step: (rounds sampled and stored, batches trained on).

        ``calculate_rr_weights``; a local runner is counted that does not sample beside others.
        """
        if not self.training_intensity:
            return 1, 1
        of_a_round = self.sample_steps(0) * (self.num_env_runners + 1)
        batches = self.training_intensity / (self.train_batch_size / of_a_round)
        return (round(1 / batches), 1) if batches < 1 else (1, round(batches))

    def sample_steps(self, index: int) -> int:
        """Env steps of one ``sample()``."""
        return self.fragment(index) * self.num_envs_per_env_runner

    def sample_core_s(self, index: int) -> float:
        """One ``sample()`` on a core, in the mean, by numbers."""
        steps_s = self.sample_steps(index) * self.env.step_s
        return steps_s + self.fragment(index) * self.model.forward_s

    def gradient_steps(self, steps: float) -> int:
        """Of one update: shares go on over the ends of epochs (``MiniBatchCyclicIterator``)."""
        of_each = steps / max(self.num_learners, 1)
        of_a_step = min(self.minibatch_size or of_each, of_each)
        return ceil(self.num_epochs * of_each / of_a_step - ROUNDING) * self.iterations_per_batch

    def update_s(self, steps: float, model: ModelSpec | None = None) -> float:
        """One update of all learners on so many env steps, with the module as it is priced."""
        learners = max(self.num_learners, 1)
        of_each = steps / learners
        of_a_step = min(self.minibatch_size or of_each, of_each)
        each_s = (model or self.model).gradient_step_s(of_a_step, learners)
        return self.gradient_steps(steps) * (each_s + self.costs.gradient_step_core_s)

    def step_bytes(self, process: CoreProcess) -> int:
        """What an env step adds to an episode."""
        said = self.priced(process).step_bytes
        return self.env.observation_bytes if said is None else said

    def priced(self, process: CoreProcess) -> ModelSpec:
        """The module, where the process runs."""
        return self.model if self.price is None else self.price(process)


PPO = AlgorithmConfig()
"""``PPOConfig()``; others are ``replace``d."""
IMPALA = AlgorithmConfig(
    algorithm="IMPALA", rollout_fragment_length=50, train_batch_size=500, num_epochs=1,
    minibatch_size=None, num_learners=1, num_gpus_per_learner=1, min_time_s_per_iteration=10.0,
)  # fmt: skip
"""``IMPALAConfig()``."""
