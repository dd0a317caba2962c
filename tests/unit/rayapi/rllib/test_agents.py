"""Several agents: who acts, whose steps a module learns from, what that costs, what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raysim.rayapi.rllib.agents import MultiAgentEnv, Roles, make_multi_agent
from raysim.rayapi.rllib.algorithms import APPOConfig, IMPALAConfig, PPOConfig
from raysim.rayapi.rllib.off_policy import DQNConfig
from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.rllib.parts import Slow, ran
from tests.unit.rayapi.rllib.test_algorithm import config_of, iterations


class Turns(MultiAgentEnv):
    """``count`` agents in each step, and ``rare`` in each fourth; eight steps are an episode."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.sleep_s = config.get("sleep_s", 0.0)
        self.agents = [*(f"often{i}" for i in range(config.get("count", 1))), "rare"]
        super().__init__()
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_spaces = {
            name: gym.spaces.Discrete(3 if name == "rare" else 2) for name in self.agents
        }
        self.steps = 0

    def _seen(self) -> dict[str, Any]:
        return {
            name: np.zeros(4, np.float32)
            for name in self.agents
            if name != "rare" or self.steps % 4 == 0
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """As RLlib's."""
        self.steps = 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        """As RLlib's."""
        assert set(actions) == set(self._seen()), "those act who have been shown something"
        assert all(self.get_action_space(name).contains(act) for name, act in actions.items())
        time.sleep(self.sleep_s)
        self.steps += 1
        over = {"__all__": self.steps == 8}
        return self._seen(), dict.fromkeys(actions, 1.0), over, {"__all__": False}, {}


def turns(policies: Any = ("often", "rare"), runners: int = 0, **env_config: Any) -> Any:
    """400 env steps in shares of 100; agents have policies by the letters of their names."""
    config = config_of(runners=runners).environment(Turns, env_config=env_config)
    return config.multi_agent(
        policies=set(policies), policy_mapping_fn=lambda agent, *_, **__: agent.rstrip("0123456789")
    )


def test_steps_are_counted_by_agent_and_by_policy() -> None:
    first, second = ran(lambda: iterations(turns(runners=2, count=2)))
    env = second["env_runners"]
    assert env["num_agent_steps_sampled"] == {"often0": 400, "often1": 400, "rare": 100}
    assert env["num_module_steps_sampled"] == {"often": 800, "rare": 100}
    assert env["num_module_steps_sampled_lifetime"] == {"often": 1600, "rare": 200}
    assert set(first["learners"]) == {"often", "rare", "__all_modules__"}
    # 800 and one to each of two agents in 50 episodes and 2 that go on: 904 in shares of 100. The
    # other module's are as many, some of them again.
    assert first["learners"]["often"]["num_module_steps_trained"] == 1000
    assert first["learners"]["rare"]["num_module_steps_trained"] == 1000
    assert first["learners"]["__all_modules__"]["num_module_steps_trained"] == 2000
    assert first["learners"]["__all_modules__"]["num_env_steps_trained"] == 10 * 400


def test_a_policy_of_all_is_one_module() -> None:
    def main() -> Any:
        config = turns(count=3).multi_agent(policies={"all"}, policy_mapping_fn=lambda *_: "all")
        return str(config.build_algo()), iterations(config, 1)

    name, (result,) = ran(main)
    assert name.endswith("multi-agent=True)")
    assert result["env_runners"]["num_module_steps_sampled"] == {"all": 3 * 400 + 100}


def test_environments_and_modules_cost_what_they_are() -> None:
    def of(**said: Any) -> Any:
        return ran(lambda: iterations(turns(**said), 2))[-1]["timers"]

    plain, slow = of(), of(sleep_s=0.01)
    sampled, learned = "env_runner_sampling_timer", "learner_update_timer"
    assert slow[sampled] - plain[sampled] == pytest.approx(400 * 0.01, rel=0.01)
    more = of(count=8)
    assert more[sampled] > plain[sampled], "more agents have more to tell"
    # 3,200 and 8 to each of 51 episodes instead of 451, in steps of 100.
    assert more[learned] == pytest.approx(plain[learned] * 37 / 5, rel=0.1)

    def whole() -> Any:
        config = turns().multi_agent(policies={"all"}, policy_mapping_fn=lambda *_: "all")
        return iterations(config, 2)[-1]["timers"]

    alone = ran(whole)
    assert plain[sampled] > alone[sampled], "two modules are two passes"
    # 500 and 102 in seven steps of one module; 451 in five of two.
    assert plain[learned] / alone[learned] == pytest.approx(2 * 5 / 7, rel=0.1)


def test_policies_that_are_not_trained_only_act() -> None:
    def main() -> Any:
        return iterations(turns(count=2).multi_agent(policies_to_train=["rare"]), 2)[-1]

    result, whole = ran(main), ran(lambda: iterations(turns(count=2), 2))[-1]
    assert result["env_runners"]["num_module_steps_sampled"] == {"often": 800, "rare": 100}
    assert "num_module_steps_trained" not in result["learners"]["often"]
    # 100 and 51 of episodes, in shares of 100.
    assert result["learners"]["rare"]["num_module_steps_trained"] == 200
    assert result["learners"]["__all_modules__"]["num_module_steps_trained"] == 200
    learned, sampled = "learner_update_timer", "env_runner_sampling_timer"
    assert result["timers"][sampled] == whole["timers"][sampled]
    # Two steps of one module, ten of two.
    assert result["timers"][learned] == pytest.approx(whole["timers"][learned] * 2 / 20, rel=0.15)


def under(config: Any, **training: Any) -> Any:
    """The same agents under another algorithm."""
    config.environment(Turns).env_runners(num_env_runners=0).learners(num_learners=0)
    return config.training(**training).multi_agent(
        policies={"often", "rare"},
        policy_mapping_fn=lambda agent, *_, **__: agent.rstrip("0123456789"),
    )


def test_a_replay_buffer_gives_a_batch_of_each_module() -> None:
    """Numbers are those of RLlib 2.60 on these environments, with these settings."""

    def main() -> Any:
        config = under(
            DQNConfig(), num_steps_sampled_before_learning_starts=64,
            train_batch_size_per_learner=32,
            replay_buffer_config={"type": "MultiAgentPrioritizedEpisodeReplayBuffer"},
        )  # fmt: skip
        config.reporting(min_sample_timesteps_per_iteration=200)
        return iterations(config, 3)[-1]

    result = ran(main)
    for policy in ("often", "rare"):
        module = result["learners"][policy]
        assert module["num_module_steps_trained"] == 6400
        assert module["num_module_steps_trained_lifetime"] == 17184
        assert (module["num_target_updates"], module["last_target_update_ts"]) == (1, 500)
    assert result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"] == 34368
    buffer = result["replay_buffer"]
    assert (buffer["actual_n_step"], buffer["num_env_steps_added_lifetime"]) == (2.0, 600)
    assert buffer["num_env_steps_sampled_lifetime"] == 34368
    assert buffer["num_module_steps_sampled_lifetime"] == {"often": 17184, "rare": 17184}
    assert buffer["num_agent_steps_sampled"] == {"often0": 6400, "rare": 6400}


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_modules_of_impala_learn_from_their_own_parts_of_a_batch(config: Any) -> None:
    """500 env steps in ten fragments of 50: 500 and 125, and one to each of 7 episodes in each."""

    def main(**training: Any) -> Any:
        found = under(config(), **training).reporting(min_time_s_per_iteration=3)
        return iterations(found, 2)[-1]

    result = ran(main)
    often, rare = (result["learners"][policy] for policy in ("often", "rare"))
    assert often["module_train_batch_size_mean"] == 570, "as in RLlib"
    assert rare["module_train_batch_size_mean"] == 195, "192.4 in RLlib: the last part has none"
    assert ("pi_loss" in often) == (config is IMPALAConfig)
    updates = often["num_module_steps_trained"] / 570
    assert result["learners"]["__all_modules__"]["num_env_steps_trained"] == 500 * updates


def test_policies_that_nobody_acts_by_learn_nothing() -> None:
    (result,) = ran(lambda: iterations(turns(policies=("often", "rare", "third")), 1))
    assert result["env_runners"]["num_module_steps_sampled"]["third"] == 0
    assert "num_module_steps_trained" not in result["learners"]["third"]


def test_each_policy_has_a_module_of_its_own(tmp_path: Path) -> None:
    def main() -> Any:
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        specs = {
            "often": RLModuleSpec(model_config={"fcnet_hiddens": [8]}),
            "rare": RLModuleSpec(model_config={"fcnet_hiddens": [16]}),
        }
        config = turns().rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        algo = config.build_algo()
        algo.train()
        algo.save_to_path(tmp_path)
        again = type(algo).from_checkpoint(tmp_path)
        return again.train()

    result = ran(main)
    assert result["env_runners"]["num_agent_steps_sampled_lifetime"] == {"often0": 800, "rare": 200}
    modules = tmp_path / "learner_group/learner/rl_module"
    sizes = [(modules / p / "module_state.pkl").stat().st_size for p in ("often", "rare")]
    # Two actions and three.
    assert sizes == [4 * (5 * 8 + 9 * 2), 4 * (5 * 16 + 17 * 3)]
    assert (modules / "../state.pkl").stat().st_size == 2 * sum(sizes)


def test_evaluation_says_whose_steps() -> None:
    def main() -> Any:
        config = turns(runners=1)
        config.evaluation(
            evaluation_interval=1, evaluation_num_env_runners=1, evaluation_duration=10
        )
        return iterations(config, 1)

    env = ran(main)[0]["evaluation"]["env_runners"]
    assert env["num_env_steps_sampled"] == 80
    assert env["num_agent_steps_sampled"] == {"often0": 80, "rare": 20}
    assert env["num_module_steps_sampled"] == {"often": 80, "rare": 20}


def test_one_program_gives_one_result() -> None:
    def main() -> str:
        results = iterations(turns(runners=2))
        return repr([{k: v for k, v in r.items() if k != "config"} for r in results])

    assert ran(main) == ran(main)


def test_what_does_not_fit_is_said() -> None:
    for config, said in (
        (lambda: config_of(runners=0).environment(Turns), "the configuration names no policies"),
        (lambda: turns(policies=("often",)), "maps agent 'rare' to 'rare', which is not among"),
    ):
        with pytest.raises(ValueError, match=said):
            ran(lambda config=config: config().build_algo())  # type: ignore[misc]
    with pytest.raises(NotEmulatedError, match="several policies for an environment of one agent"):
        ran(lambda: turns().environment(Slow).build_algo())
    with pytest.raises(NotEmulatedError, match="PrioritizedEpisodeReplayBuffer for several agents"):
        DQNConfig().multi_agent(policies={"a", "b"}).validate()
    with pytest.raises(ValueError, match="must be dict mapping PolicyID"):
        PPOConfig().multi_agent(policies="often")


def test_spaces_are_an_agents_own_or_those_of_all() -> None:
    env = Turns({})
    env.observation_space = gym.spaces.Dict({"rare": gym.spaces.Discrete(2)})
    assert env.get_observation_space("rare") == gym.spaces.Discrete(2)
    assert env.get_observation_space("often0") is env.observation_space
    assert env.get_action_space("rare").n == 3
    assert (env.num_agents, env.max_num_agents) == (2, 2)
    assert Roles().module_steps(7) == {"default_policy": 7}


def test_agents_with_an_environment_each_end_together() -> None:
    """``make_multi_agent``: over for all when the last one is."""

    class Counts:
        """Over after as many steps as it is told."""

        observation_space = action_space = "space"

        def __init__(self, config: dict[str, int]) -> None:
            self.left = config["length"] + LENGTHS.pop(0)

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict]:
            return self.left, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
            self.left -= action
            return self.left, 1.0, self.left <= 0, False, {}

    LENGTHS = [0, 1]  # noqa: N806  (what each takes)
    config = {"num_agents": 2, "length": 1}
    env = make_multi_agent(Counts)(config)
    assert config == {"num_agents": 2, "length": 1}
    assert (env.possible_agents, env.get_observation_space(1)) == ([0, 1], "space")
    assert env.reset()[0] == {0: 1, 1: 2}
    observations, rewards, over, cut, _ = env.step({0: 1, 1: 1})
    assert (observations, rewards) == ({0: 0, 1: 1}, {0: 1.0, 1: 1.0})
    assert (over, cut["__all__"]) == ({0: True, 1: False, "__all__": False}, False)
    assert env.step({1: 1})[2] == {1: True, "__all__": True}
    with pytest.raises(ValueError, match="at least one agent"):
        env.step({})
