"""What training came to."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
    store_s, replay_s, prioritize_s
        DQN: of the driver's time with its replay buffer.
    target_updates, target_updated_at
        DQN: of the target networks; the env steps sampled since the start at the last one.
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
    store_s: float = 0.0
    replay_s: float = 0.0
    prioritize_s: float = 0.0
    target_updates: int = 0
    target_updated_at: int = 0
    training_steps: int = 1

    def __add__(self, later: Iteration) -> Iteration:
        """Both, one after the other."""
        summed = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        return Iteration(
            began_ns=self.began_ns, ended_ns=later.ended_ns,
            target_updated_at=max(self.target_updated_at, later.target_updated_at), **summed,
        )  # fmt: skip

    def __sub__(self, earlier: Iteration) -> Iteration:
        """Of sums since the start: what came after the ``earlier`` ones."""
        left = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMMED}
        return Iteration(
            began_ns=earlier.ended_ns, ended_ns=self.ended_ns,
            target_updated_at=self.target_updated_at, **left,
        )  # fmt: skip

    @property
    def took_s(self) -> float:
        """From begin to end."""
        return (self.ended_ns - self.began_ns) / 1e9

    @property
    def buffer_s(self) -> float:
        """With the replay buffer."""
        return self.store_s + self.replay_s + self.prioritize_s


_SUMMED = tuple(
    f.name for f in fields(Iteration) if f.name not in ("began_ns", "ended_ns", "target_updated_at")
)


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
