"""Connectors of the user between environments and modules, really called in the first env steps.

Real counterparts (ray 2.60): ``AlgorithmConfig.build_env_to_module_connector``,
``rllib/connectors``, whose pieces these are. They are timed with the steps of the environments that
they are called after; a module has the space that comes out of them.

Not modelled: what the pipeline around a piece costs beyond RLlib's default one; pieces between
modules and environments, which are never called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from raysim.rayapi.rllib.episodes import class_of_installed


class Pieces:
    """A pipeline of the user's pieces alone, of one runner."""

    def __init__(self, builder: Callable[..., Any], vector: Any) -> None:
        kind = class_of_installed(
            "connectors.env_to_module.env_to_module_pipeline:EnvToModulePipeline"
        )
        logger = class_of_installed("utils.metrics.metrics_logger:MetricsLogger")
        seen, acts = vector.single_observation_space, vector.single_action_space
        said = {"__env__": (vector.observation_space, vector.action_space),
                "__env_single__": (seen, acts)}  # fmt: skip
        what = "env_runners(env_to_module_connector=)"
        self._pipeline = kind(
            input_observation_space=seen, input_action_space=acts,
            connectors=built(builder, vector, said, None, what=what),
        )  # fmt: skip
        self._metrics = logger()

    @property
    def space(self) -> Any:
        """Of observations that come out."""
        return self._pipeline.observation_space

    def __call__(self, episodes: list[Any]) -> None:
        """After a step of all environments of the runner."""
        self._pipeline(
            rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={},
            metrics=self._metrics,
        )  # fmt: skip


def built(builder: Callable[..., Any], *said: Any, what: str) -> list[Any]:
    """The pieces that ``builder`` makes, called with as many of ``said`` as it takes.

    Raises
    ------
    ValueError
        It makes something else.
    """
    given = inspect.signature(builder).parameters.values()
    most = len([p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])
    starred = any(p.kind == p.VAR_POSITIONAL for p in given)
    made = builder(*(said if starred else said[:most]))
    pieces = list(made) if isinstance(made, list | tuple) else [made]
    kind = class_of_installed("connectors.connector_v2:ConnectorV2")
    for piece in pieces:
        if not isinstance(piece, kind):
            raise ValueError(
                f"`AlgorithmConfig.{what}` must return a ConnectorV2 object or a list thereof to "
                f"be added to a connector pipeline! Your function returned {piece}."
            )
    return pieces
