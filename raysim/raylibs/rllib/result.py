"""What training came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One ``algo.train()``.

    Parameters
    ----------
    began_ns, ended_ns
        When.
    env_steps_sampled, env_steps_trained, env_steps_dropped
        In it; dropped: late in PPO, more than learners take in IMPALA.
    steps_added
        By the learner, one to each episode: they are trained on as well.
    sample_s, learn_s, sync_s
        PPO: of the driver's time. IMPALA: learn_s is the learners' work.
    training_steps
        Calls of ``training_step`` (of IMPALA: events that it saw).
    """

    began_ns: int
    ended_ns: int
    env_steps_sampled: int
    env_steps_trained: int
    env_steps_dropped: int = 0
    steps_added: int = 0
    sample_s: float = 0.0
    learn_s: float = 0.0
    sync_s: float = 0.0
    training_steps: int = 1

    @property
    def took_s(self) -> float:
        """From begin to end."""
        return (self.ended_ns - self.began_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """All iterations, and what happened to env runners."""

    began_ns: int
    ready_ns: int
    """All actors had started."""
    ended_ns: int
    iterations: tuple[Iteration, ...]
    runner_failures: int
    policy_lag: float
    """Broadcasts between the weights a fragment was made with and the newest when it was used."""

    @property
    def env_steps_trained(self) -> int:
        """In all."""
        return sum(i.env_steps_trained for i in self.iterations)

    @property
    def env_steps_sampled(self) -> int:
        """In all."""
        return sum(i.env_steps_sampled for i in self.iterations)

    @property
    def env_steps_dropped(self) -> int:
        """In all."""
        return sum(i.env_steps_dropped for i in self.iterations)

    @property
    def took_s(self) -> float:
        """With the start."""
        return (self.ended_ns - self.began_ns) / 1e9

    @property
    def train_s(self) -> float:
        """Without it."""
        return (self.ended_ns - self.ready_ns) / 1e9

    @property
    def env_steps_per_s(self) -> float:
        """Trained on, without the start."""
        return self.env_steps_trained / self.train_s if self.train_s else 0.0
