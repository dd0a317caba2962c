"""``RLlibCallback``: what a user's callbacks derive from.

Real counterpart: ``ray/rllib/callbacks/callbacks.py`` (2.60). Those that the driver calls are
called; those of env runners, about episodes that nobody has, are not.
"""

from __future__ import annotations

from typing import Any

NOT_CALLED = ("on_env_runners_recreated", "on_environment_created", "on_episode_created",
              "on_episode_start", "on_episode_step", "on_episode_end", "on_sample_end")  # fmt: skip


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


def not_called(config: Any) -> list[str]:
    """Names of the user's callbacks that will not be called."""
    kinds = listed(config.callbacks_class)
    return [
        name
        for name in NOT_CALLED
        if listed(getattr(config, f"callbacks_{name}"))
        or any(hasattr(kind, name) for kind in kinds)
    ]


def listed(said: Any) -> list[Any]:
    """One, several or none, as RLlib takes them."""
    if said is None:
        return []
    return list(said) if isinstance(said, list | tuple) else [said]
