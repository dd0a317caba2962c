"""Ray's names for RLlib's modules, and the small things they hold.

Real counterparts (ray 2.60): ``ray/rllib/**/__init__.py``, ``rllib/core/columns.py``,
``rllib/utils/metrics``. Modules with classes of torch load it when one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from raysim.rayapi.rllib import algorithms, callbacks, environments, modules
from raysim.rayapi.rllib.algorithm import Algorithm
from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig, imported
from raysim.rayapi.rllib.results import AGENT, MODULE
from raysim.rayapi.unsupported import getattr_of

COLUMNS = {
    "OBS": "obs", "INFOS": "infos", "ACTIONS": "actions", "ACTIONS_FOR_ENV": "actions_for_env",
    "REWARDS": "rewards", "TERMINATEDS": "terminateds", "TRUNCATEDS": "truncateds",
    "NEXT_OBS": "new_obs", "EPS_ID": "eps_id", "AGENT_ID": "agent_id", "MODULE_ID": "module_id",
    "SEQ_LENS": "seq_lens", "T": "t", "STATE_IN": "state_in", "STATE_OUT": "state_out",
    "EMBEDDINGS": "embeddings", "ACTION_DIST_INPUTS": "action_dist_inputs",
    "ACTION_PROB": "action_prob", "ACTION_LOGP": "action_logp", "VF_PREDS": "vf_preds",
    "ADVANTAGES": "advantages", "VALUE_TARGETS": "value_targets", "LOSS_MASK": "loss_mask",
}  # fmt: skip
METRICS = {
    "ENV_RUNNER_RESULTS": "env_runners", "LEARNER_RESULTS": "learners",
    "EVALUATION_RESULTS": "evaluation", "FAULT_TOLERANCE_STATS": "fault_tolerance",
    "TIMERS": "timers", "ALL_MODULES": "__all_modules__",
    **{name.upper(): name for name in (
        "num_env_steps_sampled", "num_env_steps_sampled_lifetime", "num_agent_steps_sampled",
        "num_agent_steps_sampled_lifetime", "num_module_steps_sampled",
        "num_module_steps_sampled_lifetime", "num_env_steps_trained",
        "num_env_steps_trained_lifetime", "num_module_steps_trained",
        "num_module_steps_trained_lifetime", "episode_return_mean", "episode_return_min",
        "episode_return_max", "episode_len_mean", "episode_len_min", "episode_len_max",
        "num_episodes", "num_episodes_lifetime", "num_training_step_calls_per_iteration",
    )},
    "TRAINING_ITERATION_TIMER": "training_iteration",
    "ENV_RUNNER_SAMPLING_TIMER": "env_runner_sampling_timer",
    "LEARNER_UPDATE_TIMER": "learner_update_timer",
    "SYNCH_WORKER_WEIGHTS_TIMER": "synch_weights",
    "MODULE_TRAIN_BATCH_SIZE_MEAN": "module_train_batch_size_mean",
}  # fmt: skip


class MultiAgentEnv:
    """``MultiAgentEnv``: refused where one is used."""

    raysim_multi_agent = True

    def __init__(self) -> None:
        self.agents: list[Any] = []
        self.possible_agents: list[Any] = []


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


def rllib_modules() -> dict[str, ModuleType]:
    """By Ray's names."""
    ppo = {name: getattr(algorithms, name) for name in ("PPO", "PPOConfig")}
    impala = {"IMPALA": algorithms.IMPALA, "IMPALAConfig": algorithms.IMPALAConfig,
              "Impala": algorithms.IMPALA, "ImpalaConfig": algorithms.IMPALAConfig}  # fmt: skip
    appo = {name: getattr(algorithms, name) for name in ("APPO", "APPOConfig")}
    base = {"Algorithm": Algorithm, "AlgorithmConfig": AlgorithmConfig}
    user = dict.fromkeys(("RLlibCallback", "DefaultCallbacks"), callbacks.RLlibCallback)
    names = {
        "DEFAULT_MODULE_ID": MODULE, "DEFAULT_POLICY_ID": MODULE, "DEFAULT_AGENT_ID": AGENT,
        **{f"COMPONENT_{name.upper()}": name for name in (
            "env_runner", "env_to_module_connector", "eval_env_runner", "learner",
            "learner_group", "metrics_logger", "module_to_env_connector", "optimizer", "rl_module",
        )},
        "ALL_MODULES": "__all_modules__", "Columns": type("Columns", (), dict(COLUMNS)),
    }  # fmt: skip
    spec = {"RLModuleSpec": modules.RLModuleSpec}
    default = {"DefaultModelConfig": modules.DefaultModelConfig}
    envs = {"EnvContext": environments.EnvContext, "MultiAgentEnv": MultiAgentEnv}
    mark = {"override": override, "OverrideToImplementCustomLogic": lambda each: each,
            "OverrideToImplementCustomLogic_CallToSuperRecommended": lambda each: each}  # fmt: skip
    torch = ("RLModule", "TorchRLModule", "ValueFunctionAPI")
    made: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "": ({}, ()),
        "algorithms": (base | ppo | impala | appo, ()),
        "algorithms.algorithm": (base, ()), "algorithms.algorithm_config": (base, ()),
        "algorithms.callbacks": (user, ()),
        "algorithms.ppo": (ppo, ()), "algorithms.ppo.ppo": (ppo, ()),
        "algorithms.impala": (impala, ()), "algorithms.impala.impala": (impala, ()),
        "algorithms.appo": (appo, ()), "algorithms.appo.appo": (appo, ()),
        "callbacks": ({}, ()), "callbacks.callbacks": (user, ()),
        "core": (names, ()), "core.columns": (names, ()),
        "core.rl_module": (spec | default, torch),
        "core.rl_module.default_model_config": (default, ()),
        "core.rl_module.rl_module": (spec, torch),
        "core.rl_module.torch": ({}, torch), "core.rl_module.torch.torch_rl_module": ({}, torch),
        "core.rl_module.apis": ({}, torch), "core.rl_module.apis.value_function_api": ({}, torch),
        "env": (envs, ()), "env.env_context": (envs, ()), "env.multi_agent_env": (envs, ()),
        "utils": ({}, ()), "utils.annotations": (mark, ()), "utils.metrics": (METRICS, ()),
        "utils.framework": ({"try_import_torch": try_import_torch,
                             "try_import_tf": try_import_tf}, ()),
        "utils.typing": ({"TensorType": Any, "ResultDict": dict, "EnvType": Any}, ()),
    }  # fmt: skip
    return {
        ("ray.rllib." + name).rstrip("."): _module(name, held, later)
        for name, (held, later) in made.items()
    }


def _module(name: str, held: dict[str, Any], later: tuple[str, ...]) -> ModuleType:
    full = f"ray.rllib.{name}".rstrip(".")
    module = ModuleType(full)
    missing = getattr_of(full)

    def ask(attribute: str) -> Any:
        if attribute in held or attribute in later:
            imported()  # a real import has loaded all of RLlib by now
        if attribute in held:
            return held[attribute]
        if attribute in later:
            return getattr(import_module("raysim.rayapi.rllib.rl_modules"), attribute)
        return missing(attribute)

    vars(module).update(__path__=[], __getattr__=ask, __dir__=lambda: [*held, *later])
    return module
