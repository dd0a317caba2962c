"""What ``train`` and ``evaluate`` return: RLlib's keys; what nobody has learned is NaN.

Real counterparts (ray 2.60): ``rllib/utils/metrics/__init__.py``, ``Algorithm.step``,
``Trainable.train``. Timers are means of the iteration, not smoothed over several.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.rllib.agents import MODULE
from raysim.rayapi.rllib.costed import REPLAY
from raysim.rayapi.tune.folders import date

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.rllib.agents import Roles
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
    from raysim.raylibs.rllib.config import AlgorithmConfig as Costed
    from raysim.raylibs.rllib.result import Iteration

NAN = float("nan")
EPISODES = (
    "episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean",
    "episode_len_min", "episode_len_max", "episode_duration_sec_mean",
)  # fmt: skip
_ONE = "gradients_default_optimizer_global_norm"
_Q = ("total_loss", "qf_loss", "qf_mean", "qf_max", "qf_min", "td_error_mean")
OF_PPO = (
    "total_loss", "policy_loss", "vf_loss", "vf_loss_unclipped", "vf_explained_var", "entropy",
    "mean_kl_loss", "curr_kl_coeff", "curr_entropy_coeff", _ONE,
)  # fmt: skip
OF_IMPALA = (
    "total_loss", "pi_loss", "mean_pi_loss", "vf_loss", "mean_vf_loss", "entropy",
    "curr_entropy_coeff", _ONE,
)  # fmt: skip
OF_APPO = (
    "total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss", "curr_kl_coeff", "mean_IS",
    "var_IS", "curr_entropy_coeff", _ONE,
)  # fmt: skip
OF_DQN = (*_Q, _ONE)
OF_SAC = (
    *_Q, "policy_loss", "qf_twin_loss", "alpha_loss", "alpha_value", "log_alpha_value", "logps",
)  # fmt: skip
ON_POLICY = {"PPO": OF_PPO, "IMPALA": OF_IMPALA, "APPO": OF_APPO}
LOSSES = tuple(dict.fromkeys((*OF_PPO, *OF_IMPALA, *OF_APPO, *OF_DQN, *OF_SAC)))
"""NaN."""


class Counted:
    """Since an algorithm began."""

    def __init__(self) -> None:
        self.sampled = self.trained = self.updates = 0
        self.stored = self.not_said = self.replayed = self.target_updates = 0
        self.of_agents: dict[Any, int] = {}
        self.of_modules: dict[str, int] = {}
        """Sampled."""
        self.learned: dict[str, int] = {}
        """Samples that modules have been trained on."""
        self.iterations, self.total_s = 0, 0.0

    def iteration(
        self, done: Iteration, config: AlgorithmConfig, costed: Costed, roles: Roles
    ) -> dict[str, Any]:
        """One training iteration, before Tune's keys."""
        self.sampled += done.env_steps_sampled
        self.iterations += 1
        calls, learners = self._trained(done, config, costed, roles)
        result = {
            "timers": _timers(done, calls),
            "env_runners": self._sampled(done, roles),
            "learners": learners,
            "num_training_step_calls_per_iteration": done.training_steps,
            "num_env_steps_sampled_lifetime": self.sampled,
        }
        if costed.algorithm in REPLAY:
            result["replay_buffer"] = self._replayed(done, config, roles)
            if not self.updates:  # nothing has been learned, so nothing is said of it
                del result["learners"], result["replay_buffer"]
        return result

    def _trained(
        self, done: Iteration, config: AlgorithmConfig, costed: Costed, roles: Roles
    ) -> tuple[int, dict[str, Any]]:
        """(updates, ``learners`` of a result)."""
        learners, env_steps = config.num_learners or 1, done.env_steps_trained
        of_all, replays = env_steps + done.steps_added, costed.algorithm in REPLAY
        calls = max(1, of_all // (costed.train_batch_size or 1)) if env_steps else 0
        if roles.several and calls and costed.algorithm == "PPO":
            calls = done.training_steps
        each = costed.samples(env_steps, done.steps_added) / calls if calls else 0
        steps = costed.gradient_steps(each) * calls if calls else 0
        # A policy that nobody acts by has nothing to learn from.
        trains = tuple(p for p in roles.trained if p in roles.spaces) or (MODULE,)
        batches = dict.fromkeys(trains, costed.minibatch_size or max(1, int(each) // learners))
        if roles.several and calls and not replays and not costed.minibatch_size:
            own = roles.module_steps(env_steps // calls, done.steps_added // calls)
            batches = {policy: max(1, own[policy] // learners) for policy in trains}
        # Of several agents a batch is as long as its env steps, without what is added to them; one
        # of a replay buffer has items of each module.
        trained = steps * (env_steps if roles.several else of_all) // max(1, calls)
        trained *= len(roles.spaces) if roles.several and replays else 1
        self.trained += trained
        self.updates += steps
        learned, found = self._learned(done, config, costed), {}
        for policy, batch in batches.items():
            count = steps * batch * learners
            self.learned[policy] = self.learned.get(policy, 0) + count
            found[policy] = {
                **learned, **_steps_trained(count, self.learned[policy]),
                "module_train_batch_size_mean": float(batch),
            }  # fmt: skip
        rates = _rates(config, costed.algorithm)
        found |= {policy: dict(rates) for policy in roles.policies if policy not in trains}
        found["__all_modules__"] = {
            **_steps_trained(
                sum(steps * batch * learners for batch in batches.values()),
                sum(self.learned.values()),
            ),
            "num_env_steps_trained": trained, "num_env_steps_trained_lifetime": self.trained,
        }  # fmt: skip
        return calls, found

    def _sampled(self, done: Iteration, roles: Roles) -> dict[str, Any]:
        agents, modules = (
            of(done.env_steps_sampled) for of in (roles.agent_steps, roles.module_steps)
        )
        for name, count in agents.items():
            self.of_agents[name] = self.of_agents.get(name, 0) + count
        for name, count in modules.items():
            self.of_modules[name] = self.of_modules.get(name, 0) + count
        returns = "episode_returns_mean" if roles.several else "episode_return_mean"
        return {
            **dict.fromkeys(EPISODES, NAN), "sample": done.sample_s / max(1, done.training_steps),
            "num_env_steps_sampled": done.env_steps_sampled,
            "num_env_steps_sampled_lifetime": self.sampled,
            "num_agent_steps_sampled": agents,
            "num_agent_steps_sampled_lifetime": dict(self.of_agents),
            "num_module_steps_sampled": modules,
            "num_module_steps_sampled_lifetime": dict(self.of_modules),
            f"agent_{returns}": dict.fromkeys(agents, NAN),
            f"module_{returns}": dict.fromkeys(modules, NAN),
            "num_episodes": NAN, "num_episodes_lifetime": NAN,
            "num_env_steps_sampled_lifetime_throughput": {
                "throughput_since_last_reduce": done.env_steps_sampled / (done.took_s or NAN),
            },
        }  # fmt: skip

    def _learned(self, done: Iteration, config: Any, costed: Costed) -> dict[str, Any]:
        """Of the module: losses, which nobody knows, and what is said of it."""
        rates = _rates(config, costed.algorithm)
        if costed.algorithm not in REPLAY:
            return {**dict.fromkeys(ON_POLICY[costed.algorithm], NAN), **rates}
        self.target_updates += done.target_updates
        targets = {} if not self.target_updates else {
            "num_target_updates": self.target_updates,
            "last_target_update_ts": done.target_updated_at,
        }  # fmt: skip
        losses = OF_DQN if costed.algorithm == "DQN" else OF_SAC
        return {**dict.fromkeys(losses, NAN), **rates, **targets}

    def _replayed(self, done: Iteration, config: Any, roles: Roles) -> dict[str, Any]:
        """Of the replay buffer: what does not depend on episodes' lengths."""
        stored = done.env_steps_sampled - done.env_steps_dropped
        self.stored += stored
        self.not_said += stored
        added = self.not_said
        if done.env_steps_trained:  # the buffer is asked when a batch is taken from it
            self.not_said = 0
        items = done.env_steps_trained
        self.replayed += items
        modules = tuple(roles.spaces) if roles.several else (MODULE,)

        def told(name: str, count: int, agents: Any, modules: Any, times: int = 1) -> Any:
            of_each = {"env": count * times, "agent": agents(count), "module": modules(count)}
            return {f"num_{kind}_steps_{name}": said for kind, said in of_each.items()}

        of_added = roles.agent_steps, roles.module_steps
        of_items = roles.items_of_agents, partial(dict.fromkeys, modules), len(modules)
        several = isinstance(config.n_step, tuple | list)
        kept = told("added", added, *of_added) | told("added_lifetime", self.stored, *of_added)
        if roles.several:  # of an agent RLlib counts where an episode begins
            kept = {name: count for name, count in kept.items() if "_env_" in name}
        return {
            **kept,
            **told("sampled", items, *of_items),
            **told("sampled_lifetime", self.replayed, *of_items),
            # RLlib sums it over modules.
            "actual_n_step": NAN if several else float(config.n_step) * len(modules),
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


def _rates(config: Any, algorithm: str) -> dict[str, float]:
    """Of each optimizer."""
    if algorithm != "SAC":
        return {"default_optimizer_learning_rate": config.lr}
    return {
        "qf_learning_rate": config.critic_lr, "qf_twin_learning_rate": config.critic_lr,
        "policy_learning_rate": config.actor_lr, "alpha_learning_rate": config.alpha_lr,
    }  # fmt: skip


def _steps_trained(count: int, in_all: int) -> dict[str, int]:
    return {"num_module_steps_trained": count, "num_module_steps_trained_lifetime": in_all}


def _timers(done: Iteration, updates: int) -> dict[str, float]:
    """Of one call each, in the mean."""
    calls = max(1, done.training_steps)
    found = {
        "training_iteration": done.took_s, "training_step": done.took_s / calls,
        "env_runner_sampling_timer": done.sample_s / calls,
        "learner_update_timer": done.learn_s / max(1, updates),
        "synch_weights": done.sync_s / calls,
    }  # fmt: skip
    if done.store_s:
        found["replay_buffer_add_data_timer"] = done.store_s / calls
    if done.replay_s:
        found["replay_buffer_sampling_timer"] = done.replay_s / max(1, updates)
        found["replay_buffer_update_prios_timer"] = done.prioritize_s / max(1, updates)
    return found


def evaluated(roles: Roles, steps: int, episodes: int | None) -> dict[str, Any]:
    """``evaluation`` of a result."""
    return {
        "env_runners": {
            **dict.fromkeys(EPISODES, NAN), "num_env_steps_sampled": steps,
            "num_env_steps_sampled_lifetime": steps,
            "num_agent_steps_sampled": roles.agent_steps(steps),
            "num_module_steps_sampled": roles.module_steps(steps),
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
