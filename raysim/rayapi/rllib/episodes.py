"""Episodes of the first env steps as RLlib keeps them: what connectors and callbacks are given.

Real counterparts (ray 2.60): ``rllib/env/{single_agent_episode,multi_agent_episode}.py``, whose
classes these are, and the parts of the env runners that fill them.

Not modelled: episodes after the first steps, and what a module adds to a step.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib import installed

if TYPE_CHECKING:
    from raysim.rayapi.rllib.agents import Roles

Tell = Callable[..., None]


def class_of_installed(path: str) -> Any:
    """``ray.rllib.MODULE:NAME`` of the Ray that is installed.

    Raises
    ------
    ModuleNotFoundError
        None is; with what to install.
    """
    module, _, name = path.partition(":")
    if installed.folder() is None:
        raise ModuleNotFoundError(
            "Connectors, learners and callbacks of one's own run on RLlib's own classes of "
            f"episodes and modules, and {name} of ray.rllib.{module} is not installed: "
            'pip install "ray[rllib]"',
            name="ray.rllib",
        )
    return getattr(import_module(f"ray.rllib.{module}"), name)


class Watched:
    """The episodes of one environment, one after the other."""

    def __init__(self, env: Any, roles: Roles, tell: Tell, index: int) -> None:
        self._env, self._roles, self._index = env, roles, index
        self._tell = tell
        self._over: list[Any] = []
        self.episode: Any = None

    def began(self, observations: Any, infos: Any) -> None:
        """It has been reset."""
        self.episode = self._new()
        self._say("on_episode_created")
        if self._roles.several:
            self.episode.add_env_reset(observations=observations, infos=infos)
        else:
            self.episode.add_env_reset(observation=observations, infos=infos)
        self._say("on_episode_start")

    def stepped(self, actions: Any, found: tuple[Any, ...]) -> None:
        """It has been stepped: ``found`` is what ``env.step`` returned."""
        seen, rewards, ended, cut, infos = found
        several = self._roles.several
        ends = {"terminateds" if several else "terminated": ended,
                "truncateds" if several else "truncated": cut}  # fmt: skip
        self.episode.add_env_step(seen, actions, rewards, infos, **ends)
        self._say("on_episode_step")
        if self.episode.is_done:
            self._over.append(self.episode)
            self._say("on_episode_end")

    def taken(self) -> list[Any]:
        """Episodes that have gone on since this was asked last."""
        over, self._over = self._over, []
        return [*over, self.episode]

    def _new(self) -> Any:
        env, roles = self._env, self._roles
        if not roles.several:
            kind = class_of_installed("env.single_agent_episode:SingleAgentEpisode")
            return kind(observation_space=env.observation_space, action_space=env.action_space)
        kind = class_of_installed("env.multi_agent_episode:MultiAgentEpisode")
        return kind(agent_to_module_mapping_fn=roles.mapping)

    def _say(self, name: str) -> None:
        self._tell(name, episode=self.episode, env_index=self._index)
