"""Connectors between environments and modules: what changes an observation before a module sees it.

Real counterparts (ray 2.60): ``rllib/connectors/env_to_module/flatten_observations.py``,
``AlgorithmConfig.build_env_to_module_connector``. A piece runs around the user's environment, so it
is timed with its steps; the module has the space that comes out.

Not modelled: what the pipeline around a piece costs beyond RLlib's default one; other connectors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from raysim.rayapi.rllib.agents import MultiAgentEnv
from raysim.rayapi.unsupported import NotEmulatedError


class FlattenObservations:
    """``FlattenObservations``: one row of numbers, one-hot where they are discrete."""

    def __init__(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        *,
        multi_agent: bool = False,
        agent_ids: Collection[Any] | None = None,
        as_learner_connector: bool = False,
        **kwargs: Any,
    ) -> None:
        del input_observation_space, input_action_space, multi_agent, kwargs
        if as_learner_connector:
            raise NotEmulatedError(
                "FlattenObservations(as_learner_connector=True)", "one between env and module"
            )
        self._agents = agent_ids

    def space(self, space: Any, agent: Any = None) -> Any:
        """What comes out, of what goes in."""
        return space if self._not_of(agent) else _spaces().flatten_space(space)

    def value(self, space: Any, observation: Any, agent: Any = None) -> Any:
        """An observation of that space, changed."""
        return observation if self._not_of(agent) else _spaces().flatten(space, observation)

    def _not_of(self, agent: Any) -> bool:
        return agent is not None and self._agents is not None and agent not in self._agents


PIECES = {"FlattenObservations": FlattenObservations}
"""By RLlib's names."""


def _spaces() -> Any:
    from raysim.rayapi.rllib.environments import gymnasium  # it imports this

    return gymnasium().spaces


def connected(creator: Callable[[Any], Any], builder: Any) -> Callable[[Any], Any]:
    """What makes an environment, with the pieces around it that ``builder`` makes.

    Raises
    ------
    NotEmulatedError
        A piece is of another kind.
    """
    if builder is None:
        return creator

    def make(context: Any) -> Any:
        env = creator(context)
        several = isinstance(env, MultiAgentEnv)
        for piece in _pieces(builder, env):
            env = _Agents(env, piece) if several else _Alone(env, piece)
        return env

    return make


def _pieces(builder: Any, env: Any) -> list[Any]:
    """As RLlib calls it: ``(env, spaces, device)``, or ``(env)`` as before."""
    count = len(inspect.signature(builder).parameters)
    made = builder(env) if count == 1 else builder(env, {}, None)
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    for piece in pieces:
        if not isinstance(piece, FlattenObservations):
            raise NotEmulatedError(
                f"the env-to-module connector {type(piece).__name__}",
                "FlattenObservations; wrappers of gymnasium around the environment",
            )
    return pieces


class _Alone:
    """An environment of one agent behind a piece."""

    def __init__(self, env: Any, piece: Any) -> None:
        self._env, self._piece = env, piece
        self.observation_space = piece.space(env.observation_space)
        self.action_space = env.action_space

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **kwargs: Any) -> Any:
        """The environment's."""
        observation, infos = self._env.reset(**kwargs)
        return self._piece.value(self._env.observation_space, observation), infos

    def step(self, action: Any) -> Any:
        """The environment's."""
        observation, *rest = self._env.step(action)
        return (self._piece.value(self._env.observation_space, observation), *rest)


class _Agents(MultiAgentEnv):
    """One of several agents behind a piece."""

    def __init__(self, env: Any, piece: Any) -> None:
        self._env, self._piece = env, piece
        self.agents, self.possible_agents = env.agents, env.possible_agents
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def get_observation_space(self, agent_id: Any) -> Any:
        """As the module sees it."""
        return self._piece.space(self._env.get_observation_space(agent_id), agent_id)

    def get_action_space(self, agent_id: Any) -> Any:
        """The environment's."""
        return self._env.get_action_space(agent_id)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """The environment's."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._changed(observations), infos

    def step(self, action_dict: dict[Any, Any]) -> Any:
        """The environment's."""
        observations, *rest = self._env.step(action_dict)
        return (self._changed(observations), *rest)

    def _changed(self, observations: dict[Any, Any]) -> dict[Any, Any]:
        space = self._env.get_observation_space
        return {a: self._piece.value(space(a), o, a) for a, o in observations.items()}
