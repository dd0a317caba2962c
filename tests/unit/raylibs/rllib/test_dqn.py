"""DQN on a small cluster, by numbers, against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.raylibs.rllib.config import PPO, AlgorithmConfig, RLlibCosts
from raysim.raylibs.rllib.dqn import Dqn
from raysim.raylibs.rllib.report import report_of
from raysim.raylibs.rllib.result import Iteration, TrainingResult
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import run
from tests.unit.raylibs.rllib.test_algorithms import ENV, MODEL, NO_COSTS


def dqn_config(**changes: Any) -> AlgorithmConfig:
    """4 runners make 40 env steps in 0.1 s; an update on 32 of them takes 0.2 s."""
    config = replace(
        PPO, algorithm="DQN", env=ENV, model=MODEL, costs=NO_COSTS, num_env_runners=4,
        rollout_fragment_length=10, train_batch_size=32, num_epochs=1, minibatch_size=None,
        learning_starts=100, target_update_freq=100, min_sample_steps_per_iteration=200,
    )  # fmt: skip
    return replace(config, **changes)


def iterations(config: AlgorithmConfig, count: int = 2) -> list[Iteration]:
    """Of an algorithm that is built and stopped."""
    on = ray_cluster(cpus=8)

    def script(process: Any) -> Any:
        dqn = Dqn(process, config, on.sim.rng, "dqn")
        yield from dqn.start()
        for _ in range(count):
            yield from dqn.iteration()
        yield from dqn.stop()
        return dqn.iterations

    found: list[Iteration] = run(on, script, until="1h")
    return found


def test_nothing_is_learned_before_there_is_enough() -> None:
    first, second = iterations(dqn_config())
    assert [i.env_steps_sampled for i in (first, second)] == [200, 200]
    assert [i.training_steps for i in (first, second)] == [5, 5]
    # 40 and 80 env steps are too few: the third, fourth and fifth step learn.
    assert [i.env_steps_trained for i in (first, second)] == [3 * 32, 5 * 32]
    assert second.sample_s == pytest.approx(5 * 0.1, rel=0.05)
    assert second.learn_s == pytest.approx(5 * 0.2, rel=0.01)
    assert second.took_s == pytest.approx(5 * 0.3, rel=0.05)


def test_target_networks_follow_after_so_many_env_steps() -> None:
    found = iterations(dqn_config(), 3)
    # At 120; at 240, the first after 220, and 360; at 480 and 600.
    assert [i.target_updates for i in found] == [1, 2, 2]
    assert [i.target_updated_at for i in found] == [120, 360, 600]


@pytest.mark.parametrize(
    ("runners", "fragment", "batch", "intensity", "turns"),
    # calculate_rr_weights of ray 2.60; the first is the example of its documentation
    [
        (0, 1, 250, 1000.0, (1, 4)), (1, 1, 250, None, (1, 1)), (1, 1, 8, 24.0, (1, 6)),
        (1, 1, 8, 2.0, (2, 1)), (2, 4, 64, 16.0, (1, 3)), (3, 10, 32, 0.25, (3, 1)),
    ],
)  # fmt: skip
def test_sampling_and_learning_take_turns(
    runners: int, fragment: int, batch: int, intensity: float | None, turns: tuple[int, int]
) -> None:
    config = dqn_config(
        num_env_runners=runners, rollout_fragment_length=fragment, train_batch_size=batch,
        training_intensity=intensity,
    )  # fmt: skip
    assert config.round_robin == turns


def test_more_intense_training_updates_more_often_on_the_same_samples() -> None:
    # 32 / (40 * 5) is what is natural; six updates a step.
    _, intense = iterations(dqn_config(num_env_runners=4, training_intensity=6 * 32 / 50))
    assert intense.env_steps_sampled == 200
    assert intense.env_steps_trained == 6 * 5 * 32
    _, lazy = iterations(dqn_config(training_intensity=32 / 50 / 2))
    assert (lazy.training_steps, lazy.env_steps_sampled) == (3, 240)
    assert lazy.env_steps_trained == 3 * 32


def test_the_buffer_costs_the_driver_by_items() -> None:
    costs = RLlibCosts(
        import_core_s=0.0, request_s=0.0, episode_core_s_per_byte=0.0, store_core_s=0.01,
        store_fragment_core_s=0.02, replay_core_s=0.03, replay_item_core_s=0.001,
        priority_core_s=0.002, sync_core_s=0.05,
    )  # fmt: skip
    _, plain = iterations(dqn_config())
    _, found = iterations(dqn_config(costs=costs))
    assert found.store_s - plain.store_s == pytest.approx(5 * (0.01 + 4 * 0.02), rel=0.01)
    assert found.replay_s == pytest.approx(5 * (0.03 + 32 * 0.001), rel=0.01)
    assert found.prioritize_s == pytest.approx(5 * 32 * 0.002, rel=0.01)
    assert found.sync_s - plain.sync_s == pytest.approx(5 * 0.05, rel=0.01)
    _, uniform = iterations(dqn_config(costs=costs, prioritized_replay=False))
    assert uniform.prioritize_s == 0.0


def test_items_are_pickled_for_learners_that_are_actors() -> None:
    costs = replace(NO_COSTS, ship_item_core_s=0.001, learner_request_s=0.01)
    one = dqn_config(num_learners=1, num_env_runners=0)
    _, plain = iterations(one)
    _, found = iterations(replace(one, costs=costs))
    steps = found.training_steps
    assert found.learn_s - plain.learn_s == pytest.approx(steps * (32 * 0.001 + 0.01), rel=0.02)
    assert found.sync_s - plain.sync_s == pytest.approx(steps * 0.01, rel=0.05)


def test_the_report_counts_what_is_sampled_and_says_what_binds() -> None:
    config = dqn_config()
    step = Iteration(
        began_ns=0, ended_ns=10 * 10**9, env_steps_sampled=200, env_steps_trained=6_400,
        sample_s=1.0, store_s=1.0, replay_s=4.0, prioritize_s=1.0, learn_s=3.0,
    )  # fmt: skip

    def report(iteration: Iteration) -> Any:
        result = TrainingResult(
            began_ns=0, ready_ns=0, ended_ns=iteration.ended_ns, iterations=(iteration,),
            runner_failures=0, policy_lag=0.0,
        )  # fmt: skip
        return report_of(config, result, ok=True)

    found = report(step)
    assert found.metrics["env_steps_per_s"] == 20
    assert found.bound_by.startswith("RLlib's replay buffer")
    # Half a second less of ten; one and a half.
    assert "up to 5% more" in found.would_help[0]
    assert "up to 18% more" in found.would_help[1]
    rows = dict(found.tables[0].rows)
    assert rows["buffer, each iteration"] == 6.0
    assert report(replace(step, learn_s=6.0)).bound_by.startswith("The update")
    assert report(replace(step, sample_s=7.0)).bound_by.startswith("The simulators")
