"""``RLlibCallback``: what a user's callbacks derive from.

Real counterpart: ``ray/rllib/callbacks/callbacks.py`` (2.60). Those that the driver calls are
called; those of env runners are called in the first env steps, which are real ones on random
actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OF_EPISODES = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end",
               "on_sample_end")  # fmt: skip
OF_RUNNERS = ("on_environment_created", *OF_EPISODES)
OF_DRIVER = ("on_algorithm_init", "on_train_result", "on_evaluate_start", "on_evaluate_end",
             "on_env_runners_recreated", "on_checkpoint_loaded")  # fmt: skip


class RLlibCallback:
    """``RLlibCallback``, ``DefaultCallbacks``."""

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any = None, **_: Any) -> None:
        """Users override."""

    def on_train_result(
        self, *, algorithm: Any, metrics_logger: Any = None, result: dict[str, Any], **_: Any
    ) -> None:
        """Users override."""

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: Any = None, **_: Any) -> None:
        """Users override."""

    def on_evaluate_end(
        self, *, algorithm: Any, metrics_logger: Any = None, evaluation_metrics: dict[str, Any],
        **_: Any,
    ) -> None:  # fmt: skip
        """Users override."""

    def on_checkpoint_loaded(self, *, algorithm: Any, **_: Any) -> None:
        """Users override."""

    def on_env_runners_recreated(self, *, algorithm: Any, **_: Any) -> None:
        """Users override."""

    def on_environment_created(self, *, env_runner: Any, **_: Any) -> None:
        """Users override."""

    def on_episode_created(self, *, episode: Any, **_: Any) -> None:
        """Users override."""

    def on_episode_start(self, *, episode: Any, **_: Any) -> None:
        """Users override."""

    def on_episode_step(self, *, episode: Any, **_: Any) -> None:
        """Users override."""

    def on_episode_end(self, *, episode: Any, **_: Any) -> None:
        """Users override."""

    def on_sample_end(self, *, env_runner: Any, samples: Any, **_: Any) -> None:
        """Users override."""


def callers(config: Any, made: list[Any]) -> dict[str, list[Callable[..., Any]]]:
    """The user's functions of a runner, by name; ``made`` are its ``RLlibCallback`` objects."""
    found = {
        name: [getattr(each, name) for each in made if _overridden(each, name)]
        + listed(getattr(config, f"callbacks_{name}", None))
        for name in OF_RUNNERS
    }
    return {name: functions for name, functions in found.items() if functions}


def _overridden(each: Any, name: str) -> bool:
    mine = getattr(type(each), name, None)
    return mine is not None and mine is not getattr(RLlibCallback, name)


def listed(said: Any) -> list[Any]:
    """One, several or none, as RLlib takes them."""
    if said is None:
        return []
    return list(said) if isinstance(said, list | tuple) else [said]
