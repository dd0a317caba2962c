"""``DQNConfig``, ``SACConfig`` and their algorithms, which learn from what a replay buffer keeps.

Real counterparts (ray 2.60): ``rllib/algorithms/{dqn/dqn,sac/sac}.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from raysim.rayapi.rllib import settings
from raysim.rayapi.rllib.algorithm import Algorithm
from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
from raysim.rayapi.rllib.costed import PRIORITIZED
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.rllib.dqn import Dqn

BUFFERS = ("EpisodeReplayBuffer", PRIORITIZED)
OF_SEVERAL = tuple(f"MultiAgent{name}" for name in BUFFERS)
"""Of several agents."""


class EpisodeReplayBuffer:
    """``EpisodeReplayBuffer``: a name for ``replay_buffer_config``."""


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """``PrioritizedEpisodeReplayBuffer``: the same."""


class MultiAgentEpisodeReplayBuffer(EpisodeReplayBuffer):
    """``MultiAgentEpisodeReplayBuffer``: a name, too."""


class MultiAgentPrioritizedEpisodeReplayBuffer(
    MultiAgentEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
):
    """``MultiAgentPrioritizedEpisodeReplayBuffer``: the same."""


class OffPolicyConfig(AlgorithmConfig):
    """What the configurations of DQN and SAC share; in RLlib they have no base of their own."""

    @property
    def buffer(self) -> str:
        """The replay buffer's type, by name."""
        kind = self.replay_buffer_config["type"]
        return kind if isinstance(kind, str) else kind.__name__

    @property
    def samples_of_a_step(self) -> int:
        """``minibatch_size`` is nothing to them."""
        return self.train_batch_size_per_learner

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """As many steps as a reward is summed over."""
        del worker_index
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        return int(self.n_step[1] if isinstance(self.n_step, tuple | list) else self.n_step)

    def _validate_buffer(self) -> None:
        known = OF_SEVERAL if self.is_multi_agent else BUFFERS
        if self.buffer not in known:
            agents = "several agents" if self.is_multi_agent else "one agent"
            raise NotEmulatedError(
                f"the replay buffer {self.buffer} for {agents}", " and ".join(known)
            )


class DQNConfig(OffPolicyConfig):
    """``DQNConfig``."""

    defaults: ClassVar[dict[str, Any]] = settings.DQN

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or DQN)

    @property
    def includes(self) -> dict[str, Any]:
        """As above."""
        return {
            "double_q": self.double_q, "dueling": self.dueling, "epsilon": self.epsilon,
            "num_atoms": self.num_atoms, "std_init": self.sigma0, "v_max": self.v_max,
            "v_min": self.v_min,
        }  # fmt: skip

    def validate(self) -> None:
        """As above."""
        super().validate()
        if self.lr_schedule is not None:
            self._value_error(
                "`lr_schedule` is deprecated and must be None! Use the `lr` setting to setup a "
                "schedule."
            )
        if self.td_error_loss_fn not in ("huber", "mse"):
            self._value_error("`td_error_loss_fn` must be 'huber' or 'mse'!")
        length = self.rollout_fragment_length
        if not self.in_evaluation and length != "auto" and length < self.n_step:
            self._value_error(
                f"Your `rollout_fragment_length` ({length}) is smaller than `n_step` "
                f"({self.n_step})! Try setting config.env_runners(rollout_fragment_length="
                f"{self.n_step})."
            )
        kind = self.replay_buffer_config["type"]
        if not isinstance(kind, str) and not issubclass(kind, EpisodeReplayBuffer):
            self._value_error(
                "When using the new `EnvRunner API` the replay buffer must be of type "
                "`EpisodeReplayBuffer`."
            )
        self._validate_buffer()


class SACConfig(OffPolicyConfig):
    """``SACConfig``."""

    defaults: ClassVar[dict[str, Any]] = settings.SAC

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class or SAC)

    @property
    def includes(self) -> dict[str, Any]:
        """As above."""
        return {"twin_q": self.twin_q}

    def validate(self) -> None:
        """As above."""
        super().validate()
        length = self.rollout_fragment_length
        several = isinstance(self.n_step, tuple)
        fewest = self.n_step[1] if several else self.n_step
        if not self.in_evaluation and length != "auto" and length < fewest:
            raise ValueError(
                f"Your `rollout_fragment_length` ({length}) is smaller than needed for `n_step` "
                f"({self.n_step})! If `n_step` is an integer try setting "
                f"`rollout_fragment_length={self.n_step}`. If `n_step` is a tuple, try setting "
                f"`rollout_fragment_length={fewest}`."
            )
        if self.grad_clip is not None and self.grad_clip <= 0.0:
            raise ValueError("`grad_clip` value must be > 0.0!")
        if self.replay_buffer_config["type"] not in BUFFERS + OF_SEVERAL:
            raise ValueError(
                "When using the new `EnvRunner API` the replay buffer must be of type "
                "`EpisodeReplayBuffer`."
            )
        if self.lr is not None:
            raise ValueError(
                "Basic learning rate parameter `lr` is not `None`. For SAC use the specific "
                "learning rate parameters `actor_lr`, `critic_lr` and `alpha_lr`, for the actor, "
                "critic, and the hyperparameter `alpha`, respectively and set `config.lr` to None."
            )
        self._validate_buffer()


class DQN(Algorithm):
    """``DQN``."""

    config_class: ClassVar[type[AlgorithmConfig]] = DQNConfig
    plays = Dqn

    def counts_on(self) -> None:
        """The threshold of the first update is one of env steps since the very beginning."""
        assert isinstance(self._played, Dqn), "DQN is played by another algorithm"
        self._played.env_steps_sampled = self.counted.sampled


class SAC(DQN):
    """``SAC``."""

    config_class: ClassVar[type[AlgorithmConfig]] = SACConfig
