"""Ray's names for RLlib's modules, and the small things they hold.

Real counterparts (ray 2.60): ``ray/rllib/**/__init__.py``, ``rllib/core/columns.py``,
``rllib/utils/metrics``. What they hold is loaded when a program asks for it, torch with the classes
that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from raysim.rayapi.rllib import installed
from raysim.rayapi.unsupported import getattr_of
from raysim.rayapi.util.marks import DeveloperAPI, PublicAPI

COLUMNS = {
    "OBS": "obs", "INFOS": "infos", "ACTIONS": "actions", "ACTIONS_FOR_ENV": "actions_for_env",
    "REWARDS": "rewards", "TERMINATEDS": "terminateds", "TRUNCATEDS": "truncateds",
    "NEXT_OBS": "new_obs", "EPS_ID": "eps_id", "AGENT_ID": "agent_id", "MODULE_ID": "module_id",
    "SEQ_LENS": "seq_lens", "T": "t", "STATE_IN": "state_in", "STATE_OUT": "state_out",
    "EMBEDDINGS": "embeddings", "ACTION_DIST_INPUTS": "action_dist_inputs",
    "ACTION_PROB": "action_prob", "ACTION_LOGP": "action_logp", "VF_PREDS": "vf_preds",
    "ADVANTAGES": "advantages", "VALUE_TARGETS": "value_targets", "LOSS_MASK": "loss_mask",
}  # fmt: skip
COMPONENTS = (
    "env_runner", "env_to_module_connector", "eval_env_runner", "learner", "learner_group",
    "metrics_logger", "module_to_env_connector", "optimizer", "rl_module",
)  # fmt: skip
METRICS = {
    "ENV_RUNNER_RESULTS": "env_runners", "LEARNER_RESULTS": "learners",
    "EVALUATION_RESULTS": "evaluation", "FAULT_TOLERANCE_STATS": "fault_tolerance",
    "REPLAY_BUFFER_RESULTS": "replay_buffer", "TIMERS": "timers", "ALL_MODULES": "__all_modules__",
    **{name.upper(): name for name in (
        "num_env_steps_sampled", "num_env_steps_sampled_lifetime", "num_agent_steps_sampled",
        "num_agent_steps_sampled_lifetime", "num_module_steps_sampled",
        "num_module_steps_sampled_lifetime", "num_env_steps_trained",
        "num_env_steps_trained_lifetime", "num_module_steps_trained",
        "num_module_steps_trained_lifetime", "episode_return_mean", "episode_return_min",
        "episode_return_max", "episode_len_mean", "episode_len_min", "episode_len_max",
        "num_episodes", "num_episodes_lifetime", "num_training_step_calls_per_iteration",
        "num_target_updates", "last_target_update_ts",
    )},
    "TRAINING_ITERATION_TIMER": "training_iteration",
    "ENV_RUNNER_SAMPLING_TIMER": "env_runner_sampling_timer",
    "LEARNER_UPDATE_TIMER": "learner_update_timer",
    "SYNCH_WORKER_WEIGHTS_TIMER": "synch_weights",
    "MODULE_TRAIN_BATCH_SIZE_MEAN": "module_train_batch_size_mean",
}  # fmt: skip


class TorchCompileWhatToCompile(StrEnum):
    """``TorchCompileWhatToCompile``."""

    COMPLETE_UPDATE = "complete_update"
    FORWARD_TRAIN = "forward_train"


def override(_cls: Any) -> Callable[[Any], Any]:
    """``ray.rllib.utils.annotations.override``: a mark."""
    return lambda method: method


def try_import_torch(error: bool = False) -> tuple[Any, Any]:
    """(torch, torch.nn), or Nones."""
    try:
        return import_module("torch"), import_module("torch.nn")
    except ModuleNotFoundError:
        if error:
            raise
        return None, None


def try_import_tf(error: bool = False) -> tuple[None, None, None]:
    """TensorFlow is not emulated."""
    if error:
        raise ImportError("Could not import TensorFlow: it is not emulated by raysim.")
    return None, None, None


MODULES = (
    "", "algorithms", "algorithms.algorithm", "algorithms.algorithm_config", "algorithms.callbacks",
    "algorithms.ppo", "algorithms.ppo.ppo", "algorithms.impala", "algorithms.impala.impala",
    "algorithms.appo", "algorithms.appo.appo", "algorithms.dqn", "algorithms.dqn.dqn",
    "algorithms.sac", "algorithms.sac.sac", "callbacks", "callbacks.callbacks", "core",
    "core.columns", "core.rl_module", "core.rl_module.default_model_config",
    "core.rl_module.rl_module", "core.rl_module.multi_rl_module",
    "policy", "policy.policy", "core.rl_module.torch", "core.rl_module.torch.torch_rl_module",
    "core.rl_module.apis", "core.rl_module.apis.value_function_api", "env", "env.env_context",
    "env.multi_agent_env", "utils", "utils.annotations", "utils.metrics", "utils.framework",
    "utils.typing", "utils.replay_buffers", "utils.replay_buffers.episode_replay_buffer",
    "utils.replay_buffers.prioritized_episode_buffer",
    "utils.replay_buffers.multi_agent_episode_buffer",
    "utils.replay_buffers.multi_agent_prioritized_episode_buffer", "examples", "examples.utils",
)  # fmt: skip
OF_TORCH = ("RLModule", "TorchRLModule", "ValueFunctionAPI")
"""In modules below ``core.rl_module``."""


def rllib_modules() -> dict[str, ModuleType]:
    """By Ray's names."""
    ours = [name for name in MODULES if not installed.preferred(name)]
    return {f"ray.rllib.{name}".rstrip("."): _module(name) for name in ours}


@cache
def _held() -> dict[str, dict[str, Any]]:
    """What each module holds, but for classes of torch; those not named hold nothing."""
    from raysim.rayapi.rllib import (
        agents,
        algorithms,
        callbacks,
        environments,
        examples,
        modules,
        off_policy,
    )
    from raysim.rayapi.rllib.agents import AGENT, MODULE
    from raysim.rayapi.rllib.algorithm import Algorithm
    from raysim.rayapi.rllib.algorithm_config import UNSAID, AlgorithmConfig

    ppo = {name: getattr(algorithms, name) for name in ("PPO", "PPOConfig")}
    impala = {
        "IMPALA": algorithms.IMPALA, "IMPALAConfig": algorithms.IMPALAConfig,
        "Impala": algorithms.IMPALA, "ImpalaConfig": algorithms.IMPALAConfig,
    }  # fmt: skip
    appo = {name: getattr(algorithms, name) for name in ("APPO", "APPOConfig")}
    dqn = {"DQN": off_policy.DQN, "DQNConfig": off_policy.DQNConfig}
    sac = {"SAC": off_policy.SAC, "SACConfig": off_policy.SACConfig}
    kinds = off_policy.BUFFERS + off_policy.OF_SEVERAL
    buffers = {name: getattr(off_policy, name) for name in kinds}
    base = {"Algorithm": Algorithm, "AlgorithmConfig": AlgorithmConfig}
    user = dict.fromkeys(("RLlibCallback", "DefaultCallbacks"), callbacks.RLlibCallback)
    names = {
        "DEFAULT_MODULE_ID": MODULE, "DEFAULT_POLICY_ID": MODULE, "DEFAULT_AGENT_ID": AGENT,
        "ALL_MODULES": "__all_modules__", "Columns": type("Columns", (), dict(COLUMNS)),
        **{f"COMPONENT_{name.upper()}": name for name in COMPONENTS},
    }  # fmt: skip
    spec = {"RLModuleSpec": modules.RLModuleSpec}
    several = {"MultiRLModuleSpec": agents.MultiRLModuleSpec}
    default = {"DefaultModelConfig": modules.DefaultModelConfig}
    envs = {"EnvContext": environments.EnvContext, "MultiAgentEnv": agents.MultiAgentEnv,
            "make_multi_agent": agents.make_multi_agent, "ENV_STATE": "state"}  # fmt: skip
    of_policies = {"PolicySpec": agents.PolicySpec, "Policy": agents.Policy}
    marks = ("OverrideToImplementCustomLogic",
             "OverrideToImplementCustomLogic_CallToSuperRecommended")  # fmt: skip
    return {
        "algorithms": base | ppo | impala | appo | dqn | sac,
        "algorithms.algorithm": base,
        "algorithms.algorithm_config": base | {
            "NotProvided": UNSAID, "TorchCompileWhatToCompile": TorchCompileWhatToCompile,
        },
        **dict.fromkeys(("algorithms.callbacks", "callbacks.callbacks"), user),
        **dict.fromkeys(("algorithms.ppo", "algorithms.ppo.ppo"), ppo),
        **dict.fromkeys(("algorithms.impala", "algorithms.impala.impala"), impala),
        **dict.fromkeys(("algorithms.appo", "algorithms.appo.appo"), appo),
        **dict.fromkeys(("algorithms.dqn", "algorithms.dqn.dqn"), dqn),
        **dict.fromkeys(("algorithms.sac", "algorithms.sac.sac"), sac),
        **dict.fromkeys((name for name in MODULES if "replay_buffers" in name), buffers),
        **dict.fromkeys(("core", "core.columns"), names),
        "core.rl_module": spec | several | default, "core.rl_module.multi_rl_module": several,
        **dict.fromkeys(("policy", "policy.policy"), of_policies),
        "core.rl_module.default_model_config": default, "core.rl_module.rl_module": spec,
        **dict.fromkeys(("env", "env.env_context", "env.multi_agent_env"), envs),
        "utils.annotations": {
            "override": override, "PublicAPI": PublicAPI, "DeveloperAPI": DeveloperAPI,
            **dict.fromkeys(marks, lambda each: each),
        },
        "utils.metrics": METRICS,
        "examples.utils": {name: getattr(examples, name) for name in (
            "add_rllib_example_script_args", "run_rllib_example_script_experiment",
        )},
        "utils.framework": {"try_import_torch": try_import_torch, "try_import_tf": try_import_tf},
        "utils.typing": {"TensorType": Any, "ResultDict": dict, "EnvType": Any},
    }  # fmt: skip


def _module(name: str) -> ModuleType:
    full = f"ray.rllib.{name}".rstrip(".")
    module = ModuleType(full)
    missing = getattr_of(full)
    later = OF_TORCH if name.startswith("core.rl_module") else ()

    def ask(attribute: str) -> Any:
        if attribute.startswith("__"):
            return missing(attribute)
        from raysim.rayapi.rllib.algorithm_config import imported

        held = _held().get(name, {})
        if attribute in held or attribute in later:
            imported()  # a real import has loaded all of RLlib by now
        if attribute in later:
            return getattr(import_module("raysim.rayapi.rllib.rl_modules"), attribute)
        if attribute in held:
            return held[attribute]
        try:
            return installed.constant(full, attribute)
        except KeyError:
            return missing(attribute)

    vars(module).update(
        __path__=[], __getattr__=ask, __dir__=lambda: [*_held().get(name, {}), *later]
    )
    return module
