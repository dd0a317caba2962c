"""``ray.rllib.examples.utils``: what RLlib's example scripts begin and end with.

Real counterpart: ``ray/rllib/examples/utils.py`` (2.60). The other modules of its package are not
there, nor are logging to Weights & Biases and success criteria on returns.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

INTEGERS = {
    "num-env-runners": None, "num-envs-per-env-runner": None, "num-agents": 0,
    "evaluation-num-env-runners": 0, "evaluation-interval": 0, "num-samples": 1,
    "max-concurrent-trials": None, "verbose": 2, "checkpoint-freq": 0, "tune-max-report-freq": 5,
    "num-learners": None, "num-aggregator-actors-per-learner": None, "num-cpus": 0,
    "num-gpus": None,
}  # fmt: skip
NUMBERS = {"num-cpus-per-learner": None, "num-gpus-per-learner": None}
WORDS = {"algo": "PPO", "framework": "torch", "env": None, "evaluation-duration-unit": "episodes",
         "output": None, "log-level": None, "wandb-key": None, "wandb-project": None,
         "wandb-run-name": None}  # fmt: skip
SWITCHES = (
    "evaluation-parallel-to-training", "no-tune", "checkpoint-at-end", "as-test",
    "as-release-test", "old-api-stack", "enable-new-api-stack", "local-mode",
)  # fmt: skip


def add_rllib_example_script_args(
    parser: argparse.ArgumentParser | None = None, default_reward: float = 100.0,
    default_iters: int = 200, default_timesteps: int = 100_000,
) -> argparse.ArgumentParser:  # fmt: skip
    """The options of all examples."""
    parser = parser or argparse.ArgumentParser()
    options: tuple[tuple[dict[str, Any], type], ...] = (
        (INTEGERS, int), (NUMBERS, float), (WORDS, str),
    )  # fmt: skip
    for names, kind in options:
        for name, default in names.items():
            parser.add_argument(f"--{name}", type=kind, default=default)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument(
        "--evaluation-duration", type=lambda v: v if v == "auto" else int(v), default=10
    )
    parser.add_argument("--stop-reward", type=float, default=default_reward)
    parser.add_argument("--stop-iters", type=int, default=default_iters)
    parser.add_argument("--stop-timesteps", type=int, default=default_timesteps)
    return parser


def run_rllib_example_script_experiment(
    base_config: Any, args: argparse.Namespace | None = None, *, stop: dict[str, Any] | None = None,
    success_metric: Any = None, trainable: Any = None, tune_callbacks: Any = None,
    keep_config: bool = False, keep_ray_up: bool = False, scheduler: Any = None,
    progress_reporter: Any = None,
) -> Any:  # fmt: skip
    """An experiment as the options say: in Tune, or in a loop of ``train()``."""
    from raysim.rayapi import api

    del success_metric, progress_reporter
    args = args or add_rllib_example_script_args().parse_args()
    for name, instead in (("as_test", "running it without"), ("wandb_key", "result.json")):
        if getattr(args, name):
            raise NotEmulatedError(f"--{name.replace('_', '-')} of RLlib's examples", instead)
    api.init(num_cpus=args.num_cpus or None, ignore_reinit_error=True)
    stop = stop or {
        "env_runners/episode_return_mean": args.stop_reward,
        "env_runners/num_env_steps_sampled_lifetime": args.stop_timesteps,
        "training_iteration": args.stop_iters,
    }
    if not keep_config:
        _configure(base_config, args, api.cluster_resources().get("GPU", 0))
    found = (
        _looped(base_config, args, stop) if args.no_tune
        else _tuned(trainable or base_config.algo_class, base_config, args, stop, scheduler,
                    tune_callbacks)
    )  # fmt: skip
    if not keep_ray_up:
        api.shutdown()
    return found


def _configure(config: Any, args: argparse.Namespace, gpus: float) -> None:
    config.framework(args.framework)
    if args.env is not None and config.env is None:
        config.environment(args.env)
    if args.old_api_stack:
        config.api_stack(enable_rl_module_and_learner=False)
    said = {name: value for name, value in vars(args).items() if value is not None}
    runners = ("num_env_runners", "num_envs_per_env_runner")
    config.env_runners(**{name: said[name] for name in runners if name in said})
    learners = ("num_learners", "num_aggregator_actors_per_learner", "num_cpus_per_learner")
    config.learners(**{name: said[name] for name in learners if name in said})
    count = config.num_learners or 1
    each = args.num_gpus_per_learner
    if each is not None and gpus < each * count:
        raise ValueError(
            f"You are running your script with --num-learners={args.num_learners} and "
            f"--num-gpus-per-learner={each}, but your cluster only has {gpus} GPUs!"
        )
    config.learners(num_gpus_per_learner=int(gpus >= count) if each is None else each)
    if args.evaluation_interval:
        names = ("num_env_runners", "interval", "duration", "duration_unit", "parallel_to_training")
        config.evaluation(
            **{f"evaluation_{name}": getattr(args, f"evaluation_{name}") for name in names}
        )


def _looped(config: Any, args: argparse.Namespace, stop: dict[str, Any]) -> Any:
    algo, result = config.build_algo(), {}
    for _ in range(stop.get("training_iteration", args.stop_iters)):
        result = algo.train()
        for key, threshold in stop.items():
            value: Any = result
            for part in key.split("/"):
                value = value.get(part, math.nan) if isinstance(value, dict) else math.nan
            if value >= threshold:
                algo.stop()
                return result
    algo.stop()
    return result


def _tuned(
    trainable: Any, config: Any, args: argparse.Namespace, stop: Any, scheduler: Any, callbacks: Any
) -> Any:
    from raysim.rayapi import tune

    return tune.Tuner(
        trainable,
        param_space=config,
        run_config=tune.RunConfig(
            failure_config=tune.FailureConfig(max_failures=0), stop=stop,
            callbacks=list(callbacks or []),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=args.checkpoint_freq, checkpoint_at_end=args.checkpoint_at_end
            ),
        ),
        tune_config=tune.TuneConfig(
            num_samples=args.num_samples, max_concurrent_trials=args.max_concurrent_trials,
            scheduler=scheduler,
        ),
    ).fit()  # fmt: skip
