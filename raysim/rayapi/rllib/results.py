"""What ``train`` and ``evaluate`` return: RLlib's keys; what nobody has learned is NaN.

Real counterparts (ray 2.60): ``rllib/utils/metrics/__init__.py``, ``Algorithm.step``,
``Trainable.train``. Timers are those of the iteration, not smoothed over several.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.tune.folders import date

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
    from raysim.raylibs.rllib.config import AlgorithmConfig as Costed
    from raysim.raylibs.rllib.result import Iteration

NAN = float("nan")
MODULE, AGENT = "default_policy", "default_agent"
EPISODES = (
    "episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean",
    "episode_len_min", "episode_len_max", "episode_duration_sec_mean",
)  # fmt: skip
LOSSES = (
    "total_loss", "policy_loss", "vf_loss", "vf_loss_unclipped", "vf_explained_var", "entropy",
    "mean_kl_loss", "curr_kl_coeff", "curr_entropy_coeff",
    "gradients_default_optimizer_global_norm",
)  # fmt: skip
"""NaN."""


class Counted:
    """Since an algorithm began."""

    def __init__(self) -> None:
        self.sampled = self.trained = self.module_trained = self.updates = 0
        self.iterations, self.total_s = 0, 0.0

    def iteration(self, done: Iteration, config: AlgorithmConfig, costed: Costed) -> dict[str, Any]:
        """One training iteration, before Tune's keys."""
        learners = config.num_learners or 1
        trained = done.env_steps_trained + done.steps_added
        calls = max(1, trained // (costed.train_batch_size or 1)) if done.env_steps_trained else 0
        steps = costed.gradient_steps(trained / calls) * calls if calls else 0
        batch = config.minibatch_size or max(1, trained // max(1, calls) // learners)
        module_steps = steps * batch * learners
        self.sampled += done.env_steps_sampled
        self.trained += steps * trained // max(1, calls)
        self.module_trained += module_steps
        self.updates += steps
        took_s = done.took_s or NAN
        self.iterations += 1
        return {
            "timers": {
                "training_iteration": done.took_s, "training_step": done.took_s,
                "env_runner_sampling_timer": done.sample_s, "learner_update_timer": done.learn_s,
                "synch_weights": done.sync_s,
            },
            "env_runners": {
                **dict.fromkeys(EPISODES, NAN), "sample": done.sample_s,
                "num_env_steps_sampled": done.env_steps_sampled,
                "num_env_steps_sampled_lifetime": self.sampled,
                "num_agent_steps_sampled": {AGENT: done.env_steps_sampled},
                "num_agent_steps_sampled_lifetime": {AGENT: self.sampled},
                "num_module_steps_sampled": {MODULE: done.env_steps_sampled},
                "num_module_steps_sampled_lifetime": {MODULE: self.sampled},
                "agent_episode_returns_mean": {AGENT: NAN},
                "module_episode_returns_mean": {MODULE: NAN},
                "num_episodes": NAN, "num_episodes_lifetime": NAN,
                "num_env_steps_sampled_lifetime_throughput": {
                    "throughput_since_last_reduce": done.env_steps_sampled / took_s,
                },
            },
            "learners": {
                MODULE: {
                    **dict.fromkeys(LOSSES, NAN), "num_module_steps_trained": module_steps,
                    "num_module_steps_trained_lifetime": self.module_trained,
                    "module_train_batch_size_mean": float(batch),
                    "default_optimizer_learning_rate": config.lr,
                },
                "__all_modules__": {
                    "num_module_steps_trained": module_steps,
                    "num_module_steps_trained_lifetime": self.module_trained,
                    "num_env_steps_trained": steps * trained // max(1, calls),
                    "num_env_steps_trained_lifetime": self.trained,
                },
            },
            "num_training_step_calls_per_iteration": done.training_steps,
            "num_env_steps_sampled_lifetime": self.sampled,
        }  # fmt: skip

    def filled(self, result: dict[str, Any], state: ProcessState, at_ns: int, took_s: float,
               config: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
        """``Trainable.train``'s keys."""
        self.total_s += took_s
        return {
            **result, "done": False, "training_iteration": self.iterations, "trial_id": "default",
            "date": date(at_ns), "timestamp": EPOCH_S + at_ns // 10**9, "time_this_iter_s": took_s,
            "time_total_s": self.total_s, "pid": state.pid,
            "hostname": f"ip-{state.ip.replace('.', '-')}", "node_ip": state.ip, "config": config,
            "time_since_restore": self.total_s, "iterations_since_restore": self.iterations,
        }  # fmt: skip


def evaluated(steps: int, episodes: int | None) -> dict[str, Any]:
    """``evaluation`` of a result."""
    return {
        "env_runners": {
            **dict.fromkeys(EPISODES, NAN), "num_env_steps_sampled": steps,
            "num_env_steps_sampled_lifetime": steps, "num_agent_steps_sampled": {AGENT: steps},
            "num_module_steps_sampled": {MODULE: steps},
            "num_episodes": NAN if episodes is None else episodes,
        },
    }  # fmt: skip


def check_stop(stop: Any, time_budget_s: Any) -> None:
    """Of a condition on what is not learned.

    Raises
    ------
    ValueError
        There is no other, and the trial would never end.
    """
    if not isinstance(stop, Mapping) or not stop:
        return
    never = [key for key in stop if str(key).rpartition("/")[2] in (*EPISODES, *LOSSES)]
    if len(never) == len(stop) and time_budget_s is None:
        raise ValueError(
            f"stop={dict(stop)} never ends a trial here: returns and losses are not learned and "
            "stay NaN. Add training_iteration, num_env_steps_sampled_lifetime or time_total_s."
        )


_SAID = "rllib-said"


def say_once(session: Any, key: str, text: str) -> None:
    """To the user, once in a run."""
    said = session.libraries.setdefault(_SAID, set())
    if key not in said:
        said.add(key)
        sys.stderr.write(f"raysim: {text}\n")
