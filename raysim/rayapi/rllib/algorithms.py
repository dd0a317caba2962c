"""``PPOConfig``, ``IMPALAConfig``, ``APPOConfig`` and their algorithms; all algorithms by name.

Real counterparts (ray 2.60): ``rllib/algorithms/{ppo/ppo,impala/impala,appo/appo}.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from raysim.rayapi.rllib import settings
from raysim.rayapi.rllib.algorithm import Algorithm
from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
from raysim.rayapi.rllib.off_policy import DQN, SAC
from raysim.raylibs.rllib.impala import Impala
from raysim.raylibs.rllib.ppo import Ppo

TENTH = 0.1


class PPOConfig(AlgorithmConfig):
    """``PPOConfig``."""

    defaults: ClassVar[dict[str, Any]] = settings.PPO

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or PPO)

    @property
    def includes(self) -> dict[str, Any]:
        """As above."""
        return {"vf_share_layers": False}

    def validate(self) -> None:
        """As above."""
        super().validate()
        self._validate_batch()
        batch, size = self.train_batch_size_per_learner, self.minibatch_size
        if isinstance(size, int) and size > batch:
            self._value_error(
                f"`minibatch_size` ({size}) must be <= `train_batch_size_per_learner` ({batch}). "
                f"In PPO, the train batch will be split into {size} chunks, each of which is "
                f"iterated over (used for updating the policy) {self.num_epochs} times."
            )
        if not self.in_evaluation and self.batch_mode == "truncate_episodes" and not self.use_gae:
            self._value_error(
                "Episode truncation is not supported without a value function (to estimate the "
                "return at the end of the truncated trajectory). Consider setting "
                "batch_mode=complete_episodes."
            )
        _validate_schedules(self)
        if isinstance(self.entropy_coeff, float) and self.entropy_coeff < 0.0:
            self._value_error("`entropy_coeff` must be >= 0.0")

    def _validate_batch(self) -> None:
        """``validate_train_batch_size_vs_rollout_fragment_length``."""
        if self.rollout_fragment_length == "auto" or self.in_evaluation:
            return
        runners = max(self.num_env_runners, 1)
        total = self.total_train_batch_size
        round_steps = runners * self.num_envs_per_env_runner * self.rollout_fragment_length
        reached = -(-total // round_steps) * round_steps
        if reached - total > TENTH * total or reached - round_steps - total > TENTH * total:
            fits = total // (self.num_envs_per_env_runner * runners)
            self._value_error(
                f"Your desired `total_train_batch_size` ({total}={self.num_learners} learners x "
                f"{self.train_batch_size_per_learner}) or a value 10% off of that cannot be "
                f"achieved with your other settings (num_env_runners={self.num_env_runners}; "
                f"num_envs_per_env_runner={self.num_envs_per_env_runner}; "
                f"rollout_fragment_length={self.rollout_fragment_length})! Try setting "
                f"`rollout_fragment_length` to 'auto' OR to a value of {fits}."
            )


class IMPALAConfig(AlgorithmConfig):
    """``IMPALAConfig``."""

    defaults: ClassVar[dict[str, Any]] = settings.IMPALA

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or IMPALA)

    def validate(self) -> None:
        """As above."""
        super().validate()
        if not self.vtrace:
            self._value_error(
                "IMPALA and APPO do NOT support vtrace=False anymore! Set "
                "`config.training(vtrace=True)`."
            )
        if self.replay_proportion:
            self._value_error(
                "The new API stack in combination with the new EnvRunner API does NOT support a "
                f"mixin replay buffer yet for {self} (set `config.replay_proportion` to 0.0)!"
            )
        _validate_schedules(self)
        size, total = self.minibatch_size, self.total_train_batch_size
        if size is not None and (size % self.rollout_fragment_length or size > total):
            self._value_error(
                f"`minibatch_size` ({size}) must either be None or a multiple of "
                f"`rollout_fragment_length` ({self.rollout_fragment_length}) while at the same "
                f"time smaller than or equal to `total_train_batch_size` ({total})!"
            )


class APPOConfig(IMPALAConfig):
    """``APPOConfig``."""

    defaults: ClassVar[dict[str, Any]] = settings.APPO

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or APPO)

    def validate(self) -> None:
        """As above."""
        super().validate()
        if self.minibatch_buffer_size != 1 or self.replay_proportion:
            self._value_error(
                "`minibatch_buffer_size/replay_proportion` not valid on new API stack with APPO! "
                "Use `circular_buffer_num_batches` for the number of train batches in the circular "
                "buffer. To change the maximum number of times any batch may be sampled, set "
                "`circular_buffer_iterations_per_batch`."
            )
        if self.learner_queue_size != settings.APPO["learner_queue_size"]:
            self._value_error(
                "`learner_queue_size` not supported on new API stack with APPO! In order set the "
                "size of the circular buffer (which acts as a 'learner queue'), use "
                "`config.training(circular_buffer_num_batches=..)`. To change the maximum number "
                "of times any batch may be sampled, set "
                "`config.training(circular_buffer_iterations_per_batch=..)`."
            )


def _validate_schedules(config: Any) -> None:
    for name, now in (("lr_schedule", "lr"), ("entropy_coeff_schedule", "entropy_coeff")):
        if getattr(config, name) is not None:
            config._value_error(  # noqa: SLF001  (its own)
                f"`{name}` is deprecated and must be None! Use the `{now}` setting to setup a "
                "schedule."
            )


class PPO(Algorithm):
    """``PPO``."""

    config_class = PPOConfig
    plays = Ppo


class IMPALA(Algorithm):
    """``IMPALA``."""

    config_class = IMPALAConfig
    plays = Impala


class APPO(Algorithm):
    """``APPO``."""

    config_class = APPOConfig
    plays = Impala


ALGORITHMS: dict[str, type[Algorithm]] = {
    "PPO": PPO, "IMPALA": IMPALA, "APPO": APPO, "DQN": DQN, "SAC": SAC,
}  # fmt: skip
"""By the names that Tune takes."""
OTHERS = ("BC", "MARWIL", "CQL", "IQL", "TQC", "DreamerV3")
"""Of RLlib, not emulated."""
