"""Env runners as the user's functions see them: callbacks, ``foreach_env_runner``, connectors.

Real counterparts (ray 2.60): ``rllib/env/{env_runner,env_runner_group}.py``,
``gymnasium.vector.SyncVectorEnv``.

Not modelled: modules and weights of runners; what a function that all runners are asked to run
takes beyond the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib.agents import MultiAgentEnv
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.rayapi.rllib.environments import UserEnvs


class Vector:
    """The environments of a runner, as gymnasium's vectors have them."""

    def __init__(self, envs: list[Any], given: tuple[Any, Any] = (None, None)) -> None:
        self.envs, self.num_envs = envs, len(envs)
        seen, acts = given
        first = envs[0]
        if isinstance(first, MultiAgentEnv):
            seen = seen or _of_agents(first, first.get_observation_space)
            acts = acts or _of_agents(first, first.get_action_space)
        self.single_observation_space = first.observation_space if seen is None else seen
        self.single_action_space = first.action_space if acts is None else acts

    @property
    def observation_space(self) -> Any:
        """Of all environments at once."""
        return self._batched(self.single_observation_space)

    @property
    def action_space(self) -> Any:
        """Of all environments at once."""
        return self._batched(self.single_action_space)

    @property
    def unwrapped(self) -> Vector:
        """There is nothing around it."""
        return self

    def _batched(self, space: Any) -> Any:
        from gymnasium.vector.utils import batch_space

        return batch_space(space, self.num_envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Of each environment: an attribute, or what a method of it returns."""
        found = [getattr(env, name) for env in self.envs]
        return tuple(f(*args, **kwargs) if callable(f) else f for f in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Of each environment; one value is for all."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        for env, value in zip(self.envs, each, strict=True):
            setattr(env.unwrapped, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["envs"][0], name)


def _of_agents(env: MultiAgentEnv, space_of: Callable[[Any], Any]) -> Any:
    from gymnasium.spaces import Dict

    return Dict({agent: space_of(agent) for agent in env.possible_agents or env.agents})


class Runner:
    """``EnvRunner``: what is there of it."""

    def __init__(self, of: UserEnvs, config: Any, index: int) -> None:
        self._of = of
        self.config, self.worker_index = config, index
        self.metrics = of.metrics

    @property
    def env(self) -> Any:
        """Its environments."""
        return self._of.vector

    @property
    def num_envs(self) -> int:
        """Their number."""
        return int(self._of.vector.num_envs)

    def __getattr__(self, name: str) -> Any:
        if name in ("module", "sample", "get_state", "set_state", "get_weights", "set_weights"):
            raise NotEmulatedError(f"EnvRunner.{name}", "its env, config, metrics and worker_index")
        raise AttributeError(f"'EnvRunner' object has no attribute {name!r}")


class Group:
    """``EnvRunnerGroup``: functions of the user go to its runners."""

    def __init__(self, runners: Callable[[], list[Runner]], asked: Callable[[], None]) -> None:
        self._runners, self._asked = runners, asked

    def foreach_env_runner(
        self, func: Callable[..., Any] | str | list[Any], *, local_env_runner: bool = True,
        remote_worker_ids: list[int] | None = None, kwargs: Any = None, **_others: Any,
    ) -> list[Any]:  # fmt: skip
        """What ``func`` returns for each, after one call of all of them."""
        self._asked()
        found = [
            runner for runner in self._runners()
            if (runner.worker_index or local_env_runner)
            and (remote_worker_ids is None or runner.worker_index in remote_worker_ids)
        ]  # fmt: skip
        if isinstance(func, str):
            return [getattr(runner, func)(**(kwargs or {})) for runner in found]
        if isinstance(func, list):
            return [each(runner) for each, runner in zip(func, found, strict=True)]
        return [func(runner, **(kwargs or {})) for runner in found]

    def foreach_env(self, func: Callable[[Any], Any], **_others: Any) -> list[list[Any]]:
        """What ``func`` returns for each environment of each runner."""
        self._asked()
        return [[func(env) for env in runner.env.envs] for runner in self._runners()]

    def num_remote_env_runners(self) -> int:
        """That are actors."""
        return len([runner for runner in self._runners() if runner.worker_index])

    def __getattr__(self, name: str) -> Any:
        raise NotEmulatedError(f"EnvRunnerGroup.{name}", "foreach_env_runner")
