"""A user's ``AlgorithmConfig`` as what ``raylibs.rllib`` plays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib.resources import learner_cpus
from raysim.raylibs.rllib.config import AlgorithmConfig as Costed
from raysim.raylibs.rllib.config import RLlibCosts
from raysim.raylibs.rllib.costs import DQN, PROGRAM, SAC, of_policies
from raysim.raylibs.rllib.evaluation import Duration

if TYPE_CHECKING:
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
    from raysim.rayapi.rllib.environments import EnvProgram


COSTS = {"DQN": DQN, "SAC": SAC}
REPLAY = tuple(COSTS)
NAMES = ("PPO", "IMPALA", "APPO", *REPLAY)
PRIORITIZED = "PrioritizedEpisodeReplayBuffer"


def costed(config: AlgorithmConfig, program: EnvProgram, price: Any, group: Any) -> Costed:
    """What it does, and how its environments and its module are paid for."""
    name, said = name_of(config), config.rollout_fragment_length
    iterations = getattr(config, "circular_buffer_iterations_per_batch", 1)
    found = Costed(
        algorithm=name,
        num_env_runners=config.num_env_runners,
        num_envs_per_env_runner=config.num_envs_per_env_runner,
        num_cpus_per_env_runner=config.num_cpus_per_env_runner,
        num_gpus_per_env_runner=config.num_gpus_per_env_runner,
        env_runner_resources=dict(config.custom_resources_per_env_runner),
        rollout_fragment_length=None if said == "auto" else said,
        train_batch_size=config.total_train_batch_size,
        num_epochs=config.num_epochs,
        minibatch_size=config.minibatch_size,
        num_learners=config.num_learners,
        num_gpus_per_learner=config.num_gpus_per_learner,
        num_cpus_per_learner=learner_cpus(config),
        learner_resources=dict(config.custom_resources_per_learner),
        sample_timeout_s=config.sample_timeout_s,
        max_requests_in_flight_per_env_runner=config.max_requests_in_flight_per_env_runner,
        broadcast_interval=getattr(config, "broadcast_interval", 1),
        learner_queue_size=getattr(config, "learner_queue_size", 3),
        max_requests_in_flight_per_learner=config.max_requests_in_flight_per_learner,
        num_aggregator_actors_per_learner=config.num_aggregator_actors_per_learner,
        max_requests_in_flight_per_aggregator_actor=(
            config.max_requests_in_flight_per_aggregator_actor
        ),
        iterations_per_batch=iterations if getattr(config, "use_circular_buffer", False) else 1,
        complete_episodes=config.batch_mode == "complete_episodes",
        restart_failed_env_runners=config.restart_failed_env_runners,
        ignore_env_runner_failures=config.ignore_env_runner_failures,
        max_num_env_runner_restarts=config.max_num_env_runner_restarts,
        env_runner_health_probe_timeout_s=config.env_runner_health_probe_timeout_s,
        min_time_s_per_iteration=config.min_time_s_per_iteration or 0.0,
        min_sample_steps_per_iteration=config.min_sample_timesteps_per_iteration,
        min_train_steps_per_iteration=config.min_train_timesteps_per_iteration,
        placement_group=group,
        make_env=program.runner,
        price=price,
        fullest=program.roles.fullest if program.roles.several and name not in REPLAY else None,
        costs=_costs(name, program).at_speed(program.session.env.costs.core_speed),
    )
    return _replaying(found, config) if name in REPLAY else found


def _costs(name: str, program: EnvProgram) -> RLlibCosts:
    one, roles = COSTS.get(name, PROGRAM), program.roles
    return of_policies(one, len(roles.policies), len(roles.trained)) if roles.several else one


def _replaying(found: Costed, config: Any) -> Costed:
    """Of DQN and SAC: an update is one gradient step on a batch of the buffer."""
    return replace(
        found, rollout_fragment_length=config.get_rollout_fragment_length(), num_epochs=1,
        minibatch_size=None, learning_starts=config.num_steps_sampled_before_learning_starts,
        training_intensity=config.training_intensity,
        target_update_freq=config.target_network_update_freq,
        prioritized_replay=config.buffer.endswith(PRIORITIZED),
    )  # fmt: skip


def name_of(config: AlgorithmConfig) -> Any:
    """Of the algorithm, that of a user's subclass included."""
    kinds = [] if config.algo_class is None else config.algo_class.__mro__
    return next(kind.__name__ for kind in kinds if kind.__name__ in NAMES)


def duration_of(config: AlgorithmConfig) -> Duration:
    """Of an evaluation."""
    said = config.evaluation_duration
    return Duration(
        unit=config.evaluation_duration_unit, count=None if said == "auto" else int(said),
        fewest=config.evaluation_auto_duration_min_env_steps_per_sample,
    )  # fmt: skip
