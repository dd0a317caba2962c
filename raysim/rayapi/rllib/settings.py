"""What an ``AlgorithmConfig`` can be told, by RLlib's method, with RLlib's defaults.

Real counterpart: ``ray/rllib/algorithms/algorithm_config.py`` (2.60) and those of the algorithms.
Settings of the old API stack are not here. Those of ``REFUSED`` are, with their defaults; others
are not emulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "python_environment": {
        "extra_python_environs_for_driver": {}, "extra_python_environs_for_worker": {},
    },
    "resources": {
        "num_cpus_for_main_process": 1, "custom_resources_for_main_process": {}, "num_gpus": 0,
        "_fake_gpus": False, "placement_strategy": "PACK",
    },
    "framework": {
        "framework": "torch", "torch_compile_learner": False,
        "torch_compile_learner_what_to_compile": "forward_train",
        "torch_compile_learner_dynamo_mode": None,
        "torch_compile_learner_dynamo_backend": "inductor", "torch_compile_worker": False,
        "torch_compile_worker_dynamo_backend": "onnxrt", "torch_compile_worker_dynamo_mode": None,
        "torch_ddp_kwargs": {}, "torch_skip_nan_gradients": False,
    },
    "api_stack": {
        "enable_rl_module_and_learner": True, "enable_env_runner_and_connector_v2": True,
    },
    "environment": {
        "env": None, "env_config": {}, "observation_space": None, "action_space": None,
        "render_env": False, "clip_rewards": None, "normalize_actions": True,
        "clip_actions": False, "disable_env_checking": False, "is_atari": None,
        "action_mask_key": "action_mask",
    },
    "env_runners": {
        "env_runner_cls": None, "num_env_runners": 0, "create_local_env_runner": True,
        "create_env_on_local_worker": False, "num_envs_per_env_runner": 1,
        "gym_env_vectorize_mode": "sync", "num_cpus_per_env_runner": 1,
        "num_gpus_per_env_runner": 0, "custom_resources_per_env_runner": {},
        "validate_env_runners_after_construction": True, "sample_timeout_s": 60.0,
        "max_requests_in_flight_per_env_runner": 1, "env_to_module_connector": None,
        "module_to_env_connector": None,
        "add_default_connectors_to_env_to_module_pipeline": True,
        "add_default_connectors_to_module_to_env_pipeline": True, "episode_lookback_horizon": 1,
        "merge_env_runner_states": "training_only", "broadcast_env_runner_states": True,
        "use_env_runner_state_server": False, "env_runner_state_server_max_concurrency": 16,
        "compress_observations": False, "rollout_fragment_length": 200,
        "batch_mode": "truncate_episodes", "explore": True, "episodes_to_numpy": True,
    },
    "learners": {
        "num_learners": 0, "num_cpus_per_learner": "auto", "num_gpus_per_learner": 0,
        "custom_resources_per_learner": {}, "num_aggregator_actors_per_learner": 0,
        "max_requests_in_flight_per_aggregator_actor": 3, "local_gpu_idx": 0,
        "max_requests_in_flight_per_learner": 3,
    },
    "training": {
        "gamma": 0.99, "lr": 0.001, "grad_clip": None, "grad_clip_by": "global_norm",
        "train_batch_size": 32, "train_batch_size_per_learner": None, "num_epochs": 1,
        "minibatch_size": None, "shuffle_batch_per_epoch": False, "model": {}, "optimizer": {},
        "learner_class": None, "learner_connector": None,
        "add_default_connectors_to_learner_pipeline": True, "learner_config_dict": {},
    },
    "callbacks": {
        "callbacks_class": None, "on_algorithm_init": None, "on_train_result": None,
        "on_evaluate_start": None, "on_evaluate_end": None, "on_env_runners_recreated": None,
        "on_checkpoint_loaded": None, "on_environment_created": None, "on_episode_created": None,
        "on_episode_start": None, "on_episode_step": None, "on_episode_end": None,
        "on_sample_end": None,
    },
    "evaluation": {
        "evaluation_interval": None, "evaluation_duration": 10,
        "evaluation_duration_unit": "episodes",
        "evaluation_auto_duration_min_env_steps_per_sample": 100,
        "evaluation_auto_duration_max_env_steps_per_sample": 2000,
        "evaluation_sample_timeout_s": 120.0, "evaluation_parallel_to_training": False,
        "evaluation_unhealthy_workers_timeout_s": 0.0,
        "evaluation_error_after_n_consecutive_skips": None,
        "evaluation_force_reset_envs_before_iteration": True, "evaluation_config": None,
        "off_policy_estimation_methods": {}, "ope_split_batch_by_episode": True,
        "evaluation_num_env_runners": 0, "custom_evaluation_function": None,
        "offline_evaluation_interval": None,
    },
    "offline_data": {"input_": "sampler", "output": None},
    "multi_agent": {
        "policies": {}, "policy_mapping_fn": None, "policies_to_train": None,
        "count_steps_by": "env_steps",
    },
    "reporting": {
        "keep_per_episode_custom_metrics": False, "metrics_episode_collection_timeout_s": 60.0,
        "metrics_num_episodes_for_smoothing": 100, "min_time_s_per_iteration": None,
        "min_train_timesteps_per_iteration": 0, "min_sample_timesteps_per_iteration": 0,
        "log_gradients": False, "custom_stats_cls_lookup": None,
    },
    "checkpointing": {
        "export_native_model_files": False, "checkpoint_trainable_policies_only": False,
    },
    "debugging": {
        "log_level": "WARN", "log_sys_usage": True, "fake_sampler": False, "seed": None,
    },
    "fault_tolerance": {
        "restart_failed_env_runners": True, "ignore_env_runner_failures": False,
        "max_num_env_runner_restarts": 1000, "delay_between_env_runner_restarts_s": 60.0,
        "restart_failed_sub_environments": False,
        "num_consecutive_env_runner_failures_tolerance": 100,
        "env_runner_health_probe_timeout_s": 30.0, "env_runner_restore_timeout_s": 1800.0,
    },
    "rl_module": {
        "model_config": {}, "rl_module_spec": None, "algorithm_config_overrides_per_module": {},
    },
    "experimental": {
        "_validate_config": True, "_use_msgpack_checkpoints": False,
        "_torch_grad_scaler_class": None, "_torch_lr_scheduler_classes": None,
        "_tf_policy_handles_more_than_one_loss": False, "_disable_preprocessor_api": False,
        "_disable_action_flattening": False, "_disable_initialize_loss_from_dummy_batch": False,
    },
}  # fmt: skip
"""Of the base class."""

PPO: dict[str, Any] = {
    "num_env_runners": 2, "rollout_fragment_length": "auto", "lr": 5e-5, "train_batch_size": 4000,
    "num_epochs": 30, "minibatch_size": 128, "shuffle_batch_per_epoch": True,
    "use_critic": True, "use_gae": True, "lambda_": 1.0, "use_kl_loss": True, "kl_coeff": 0.2,
    "kl_target": 0.01, "vf_loss_coeff": 1.0, "entropy_coeff": 0.0, "entropy_coeff_schedule": None,
    "clip_param": 0.3, "vf_clip_param": 10.0, "lr_schedule": None,
}  # fmt: skip
IMPALA: dict[str, Any] = {
    "num_gpus": 1, "num_env_runners": 2, "use_env_runner_state_server": True,
    "rollout_fragment_length": 50, "num_learners": 1, "lr": 0.0005, "grad_clip": 40.0,
    "train_batch_size": 500, "min_time_s_per_iteration": 10,
    "_tf_policy_handles_more_than_one_loss": True, "vtrace": True,
    "vtrace_clip_rho_threshold": 1.0, "vtrace_clip_pg_rho_threshold": 1.0, "learner_queue_size": 3,
    "timeout_s_sampler_manager": 0.0, "timeout_s_aggregator_manager": 0.0, "broadcast_interval": 1,
    "num_gpu_loader_threads": 8, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01,
    "lr_schedule": None, "entropy_coeff_schedule": None, "num_multi_gpu_tower_stacks": 1,
    "minibatch_buffer_size": 1, "replay_proportion": 0.0, "replay_buffer_num_slots": 0,
    "learner_queue_timeout": 300, "opt_type": "adam", "decay": 0.99, "momentum": 0.0,
    "epsilon": 0.1,
}  # fmt: skip
APPO: dict[str, Any] = {
    **IMPALA, "num_gpus": 0, "learner_queue_size": 16, "replay_buffer_num_slots": 100,
    "use_gae": True, "lambda_": 1.0, "clip_param": 0.4, "use_kl_loss": False, "kl_coeff": 1.0,
    "kl_target": 0.01, "target_worker_clipping": 2.0, "use_circular_buffer": True,
    "circular_buffer_num_batches": 8, "circular_buffer_iterations_per_batch": 2,
    "simple_queue_size": 32, "target_network_update_freq": 2, "tau": 1.0,
}  # fmt: skip
_BUFFER: dict[str, Any] = {
    "type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4,
}  # fmt: skip
DQN: dict[str, Any] = {
    "rollout_fragment_length": "auto", "epsilon": [(0, 1.0), (10000, 0.05)], "grad_clip": 40.0,
    "lr": 5e-4, "evaluation_config": {"explore": False}, "min_sample_timesteps_per_iteration": 1000,
    "target_network_update_freq": 500, "num_steps_sampled_before_learning_starts": 1000,
    "store_buffer_in_checkpoints": False, "adam_epsilon": 1e-8, "tau": 1.0, "num_atoms": 1,
    "v_min": -10.0, "v_max": 10.0, "noisy": False, "sigma0": 0.5, "dueling": True,
    "hiddens": [256], "double_q": True, "n_step": 1, "before_learn_on_batch": None,
    "training_intensity": None, "td_error_loss_fn": "huber",
    "categorical_distribution_temperature": 1.0, "burn_in_len": 0, "replay_buffer_config": _BUFFER,
    "lr_schedule": None,
}  # fmt: skip
_NETWORK: dict[str, Any] = {
    "fcnet_hiddens": [256, 256], "fcnet_activation": "relu", "post_fcnet_hiddens": [],
    "post_fcnet_activation": None, "custom_model": None, "custom_model_config": {},
}  # fmt: skip
SAC: dict[str, Any] = {
    "twin_q": True, "q_model_config": _NETWORK, "policy_model_config": _NETWORK,
    "clip_actions": False, "tau": 5e-3, "initial_alpha": 1.0, "target_entropy": "auto", "n_step": 1,
    "replay_buffer_config": {**_BUFFER, "capacity": 1_000_000},
    "store_buffer_in_checkpoints": False, "training_intensity": None,
    "optimization_config": {
        "actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "entropy_learning_rate": 3e-4,
    },
    "actor_lr": 3e-5, "critic_lr": 3e-4, "alpha_lr": 3e-4, "lr": None, "grad_clip": None,
    "target_network_update_freq": 0, "rollout_fragment_length": "auto",
    "train_batch_size_per_learner": 256, "train_batch_size": 256,
    "num_steps_sampled_before_learning_starts": 1500, "min_time_s_per_iteration": 1,
    "min_sample_timesteps_per_iteration": 100, "_deterministic_loss": False,
    "_use_beta_distribution": False,
}  # fmt: skip
"""Of the algorithms: what they set otherwise, and what they add to ``training``."""

ATTRIBUTES = {
    "framework": "framework_str", "model_config": "_model_config",
    "rl_module_spec": "_rl_module_spec", "is_atari": "_is_atari",
    "train_batch_size_per_learner": "_train_batch_size_per_learner",
    "learner_class": "_learner_class", "learner_connector": "_learner_connector",
    "env_to_module_connector": "_env_to_module_connector",
    "module_to_env_connector": "_module_to_env_connector",
    "custom_stats_cls_lookup": "stats_cls_lookup", "optimization_config": "optimization",
    **{name: f"callbacks_{name}" for name in METHODS["callbacks"] if name.startswith("on_")},
}  # fmt: skip
"""Where a parameter is kept, if not under its own name."""

MERGED = (
    "env_config", "algorithm_config_overrides_per_module", "replay_buffer_config", "q_model_config",
    "policy_model_config",
)  # fmt: skip
"""Dictionaries that are updated, not replaced; a buffer of another type is."""

REFUSED: dict[str, str] = {
    "env_runner_cls": "the default env runner",
    "custom_evaluation_function": "evaluation_duration and its unit",
    "count_steps_by": "env steps",
    "input_": "sampling from an environment", "output": "", "offline_evaluation_interval": "",
    "torch_compile_learner": "eager modules", "torch_compile_worker": "eager modules",
}  # fmt: skip
"""Settings that only have their defaults here, and what is emulated instead."""

DEPRECATED: Mapping[str, str] = {
    "num_workers": "num_env_runners", "num_rollout_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner", "num_cpus_per_worker":
    "num_cpus_per_env_runner", "num_gpus_per_worker": "num_gpus_per_env_runner",
    "num_sgd_iter": "num_epochs", "sgd_minibatch_size": "minibatch_size",
    "mini_batch_size_per_learner": "minibatch_size", "num_learner_workers": "num_learners",
    "num_gpus_per_learner_worker": "num_gpus_per_learner",
    "num_cpus_per_learner_worker": "num_cpus_per_learner",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "recreate_failed_env_runners": "restart_failed_env_runners",
    "model_config_dict": "model_config", "num_aggregation_workers":
    "num_aggregator_actors_per_learner",
}  # fmt: skip
"""Names of earlier versions, which Ray refuses with the new one."""
