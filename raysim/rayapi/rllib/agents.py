"""Who acts in an environment: one agent or several, and which policy (a module) acts for whom.

Real counterparts (ray 2.60): ``rllib/env/{multi_agent_env,multi_agent_env_runner}.py``,
``AlgorithmConfig.multi_agent``, ``core/rl_module/multi_rl_module.py``.

Not modelled: an agent that changes its policy from episode to episode: it keeps its first one.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from raysim.rayapi.rllib.episodes import Watched, class_of_installed
from raysim.rayapi.rllib.modules import Spaces, spaces_of
from raysim.rayapi.unsupported import NotEmulatedError

AGENT, MODULE = "default_agent", "default_policy"
"""Of environments of one agent."""


class MultiAgentEnv:
    """``MultiAgentEnv``: what users derive from."""

    agents: list[Any] = []  # noqa: RUF012  (users set their own)
    possible_agents: list[Any] = []  # noqa: RUF012
    observation_spaces: dict[Any, Any] | None = None
    action_spaces: dict[Any, Any] | None = None
    observation_space: Any = None
    action_space: Any = None

    def __init__(self) -> None:
        self._agent_ids: set[Any] = set(getattr(self, "_agent_ids", ()))
        if not self.agents:
            self.agents = list(self._agent_ids)
        if not self.possible_agents:
            self.possible_agents = list(self.agents)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Users override, and may call it."""

    def with_agent_groups(
        self, groups: dict[str, list[Any]], obs_space: Any = None, act_space: Any = None
    ) -> Any:
        """Agents of a group act as one."""
        where = "env.wrappers.group_agents_wrapper:GroupAgentsWrapper"
        return class_of_installed(where)(self, groups, obs_space, act_space)

    def get_observation_space(self, agent_id: Any) -> Any:
        """An agent's."""
        return _own(self.observation_spaces, self.observation_space, agent_id)

    def get_action_space(self, agent_id: Any) -> Any:
        """An agent's."""
        return _own(self.action_spaces, self.action_space, agent_id)

    @property
    def num_agents(self) -> int:
        """Now."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Ever."""
        return len(self.possible_agents)


def make_multi_agent(env_name_or_creator: Any) -> type[MultiAgentEnv]:
    """``ray.rllib.env.multi_agent_env.make_multi_agent``: agents with an environment each."""

    class MultiEnv(MultiAgentEnv):
        """``num_agents`` side by side; what else the configuration says is theirs."""

        def __init__(self, config: dict[str, Any] | None = None) -> None:
            given = copy.deepcopy(config or {})
            count = given.pop("num_agents", 1)
            self.envs = [_one(env_name_or_creator, given) for _ in range(count)]
            self.agents = list(range(count))
            super().__init__()
            self.over: set[int] = set()
            self.cut: set[int] = set()
            self.observation_spaces = {i: e.observation_space for i, e in enumerate(self.envs)}
            self.action_spaces = {i: e.action_space for i, e in enumerate(self.envs)}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            """All of them."""
            self.over, self.cut = set(), set()
            found = [env.reset(seed=seed, options=options) for env in self.envs]
            return {i: f[0] for i, f in enumerate(found)}, {i: f[1] for i, f in enumerate(found)}

        def step(self, action_dict: dict[int, Any]) -> Any:
            """Of those that act."""
            if not action_dict:
                raise ValueError("The environment is expecting an action for at least one agent.")
            found = {i: self.envs[i].step(action) for i, action in action_dict.items()}
            parts: list[dict[Any, Any]] = [{i: f[n] for i, f in found.items()} for n in range(5)]
            self.over |= {i for i, f in found.items() if f[2]}
            self.cut |= {i for i, f in found.items() if f[3]}
            parts[2]["__all__"] = len(self.over | self.cut) == len(self.envs)
            parts[3]["__all__"] = len(self.cut) == len(self.envs)
            return tuple(parts)

    return MultiEnv


def _one(creator: Any, config: dict[str, Any]) -> Any:
    if not isinstance(creator, str):
        return creator(config)
    from raysim.rayapi.rllib.environments import gymnasium  # it imports this

    return gymnasium().make(creator)


def _own(spaces: dict[Any, Any] | None, space: Any, agent_id: Any) -> Any:
    if spaces is not None:
        return spaces[agent_id]
    parts = getattr(space, "spaces", None)
    return parts[agent_id] if isinstance(parts, dict) and agent_id in parts else space


@dataclass
class MultiRLModuleSpec:
    """``ray.rllib.core.rl_module.multi_rl_module.MultiRLModuleSpec``."""

    rl_module_specs: dict[str, Any] = field(default_factory=dict)


@dataclass
class PolicySpec:
    """``ray.rllib.policy.policy.PolicySpec``."""

    policy_class: Any = None
    observation_space: Any = None
    action_space: Any = None
    config: Any = None


class Policy:
    """``Policy`` of the old API stack: a name that RLlib's modules import."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        raise NotEmulatedError("a Policy of RLlib's old API stack", "RLModules")


@dataclass(kw_only=True)
class Roles:
    """Of one algorithm's environments: who acts, how often, by which policy."""

    policies: tuple[str, ...] = ()
    """Of several agents; none: an environment of one."""
    trained: tuple[str, ...] = ()
    """Of these, the policies that are updated."""
    mapping: Callable[..., str] | None = None
    policy_of: dict[Any, str] = field(default_factory=dict)
    """By agent, as they appear."""
    spaces: dict[str, Spaces] = field(default_factory=dict)
    """By policy, known when the first environment is there."""
    acted: Counter[Any] = field(default_factory=Counter)
    """How often each agent has acted in real env steps."""
    steps: int = 0
    """Those."""

    @property
    def several(self) -> bool:
        """Agents, as the configuration says."""
        return bool(self.policies)

    mask_key: str = "action_mask"
    """Where an observation or its infos say which actions are allowed."""
    own: frozenset[str] = frozenset()
    """Policies with modules of the user's, which may see what RLlib has no encoder for."""

    def introduce(self, agent: Any, observation: Any, action: Any) -> None:
        """An agent with its spaces: its policy is asked once.

        Raises
        ------
        ValueError
            Nobody has named such a policy.
        """
        if agent in self.policy_of:
            return
        policy = MODULE
        if self.several:
            assert self.mapping is not None, "policies without a mapping"
            policy = self.mapping(agent, SimpleNamespace(id_="0"))
            if policy not in self.policies:
                raise ValueError(
                    f"policy_mapping_fn maps agent {agent!r} to {policy!r}, which is not among the "
                    f"policies {sorted(self.policies)}"
                )
        self.policy_of[agent] = policy
        if policy not in self.spaces:
            self.spaces[policy] = spaces_of(observation, action, encoded=policy not in self.own)

    def agent_steps(self, steps: int) -> dict[Any, int]:
        """Of so many env steps, by what has been seen."""
        if not self.several:
            return {AGENT: steps}
        return {a: round(steps * self.acted[a] / self.steps) for a in self.policy_of}

    def module_steps(self, steps: int, added: int = 0) -> dict[str, int]:
        """The same by policy; ``added`` to each of its agents."""
        found = dict.fromkeys(self.policies or (MODULE,), 0)
        for agent, count in self.agent_steps(steps).items():
            found[self.policy_of.get(agent, MODULE)] += count + added
        return found

    def items_of_agents(self, items: int) -> dict[Any, int]:
        """Of so many that a replay buffer has given each module, by whose they are."""
        if not self.several:
            return {AGENT: items}
        of_modules = self.module_steps(self.steps)
        return {
            a: round(items * self.acted[a] / of_modules[policy])
            for a, policy in self.policy_of.items() if self.acted[a]
        }  # fmt: skip

    def fullest(self, steps: int, added: int) -> int:
        """Samples of the trained module that has most: gradient steps go on until it is through."""
        found = self.module_steps(steps, added)
        return max(found[policy] for policy in self.trained)


class Acting(Protocol):
    """An environment that a runner steps."""

    def begin(self, seed: int) -> None:
        """Its first episode."""

    def step(self) -> bool:
        """Random actions; whether the episode is over, and the next one has begun."""


class OneAgent:
    """A gymnasium environment."""

    def __init__(
        self, env: Any, roles: Roles, given: tuple[Any, Any], watched: Watched | None = None
    ) -> None:
        self._env, self._roles, self._watched = env, roles, watched
        self._shown: tuple[Any, Any] = (None, None)
        seen, action = given
        roles.introduce(
            AGENT,
            env.observation_space if seen is None else seen,
            env.action_space if action is None else action,
        )

    def begin(self, seed: int) -> None:
        """As in ``Acting``."""
        self._env.action_space.seed(seed)
        self._reset(seed=seed)

    def step(self) -> bool:
        """As in ``Acting``."""
        action = drawn(self._env.action_space, *self._shown, self._roles.mask_key)
        found = self._env.step(action)
        self._shown = found[0], found[4]
        if self._watched is not None:
            self._watched.stepped(action, found)
        over = bool(found[2] or found[3])
        if over:
            self._reset()
        return over

    def _reset(self, **said: Any) -> None:
        seen, infos = self._shown = self._env.reset(**said)
        if self._watched is not None:
            self._watched.began(seen, infos)


class SeveralAgents:
    """A ``MultiAgentEnv``: those act who have been shown something."""

    def __init__(
        self, env: Any, roles: Roles, seen: Any = None, watched: Watched | None = None
    ) -> None:
        self._env, self._roles, self._watched = env, roles, watched
        parts = getattr(seen, "spaces", {})
        for agent in env.possible_agents or env.agents:
            space = parts[agent] if agent in parts else env.get_observation_space(agent)
            roles.introduce(agent, space, env.get_action_space(agent))
        self._awaited: list[Any] = []
        self._shown: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})

    def begin(self, seed: int) -> None:
        """As in ``Acting``."""
        for number, agent in enumerate(self._roles.policy_of):
            self._env.get_action_space(agent).seed(seed + number)
        self._awaited = list(self._reset(seed=seed))

    def step(self) -> bool:
        """As in ``Acting``."""
        env = self._env
        key, (shown, told) = self._roles.mask_key, self._shown
        actions = {
            agent: drawn(env.get_action_space(agent), shown.get(agent), told.get(agent), key)
            for agent in self._awaited
        }
        self._roles.acted.update(actions.keys())
        found = env.step(actions)
        if self._watched is not None:
            self._watched.stepped(actions, found)
        seen, _, ended, cut, infos = found
        self._shown = seen, infos or {}
        over = bool(ended.get("__all__") or cut.get("__all__"))
        if over:
            seen = self._reset()
        self._awaited = [a for a in seen if over or not (ended.get(a) or cut.get(a))]
        return over

    def _reset(self, **said: Any) -> Any:
        seen, infos = self._env.reset(**said)
        self._shown = seen, infos or {}
        if self._watched is not None:
            self._watched.began(seen, infos)
        return seen


def drawn(space: Any, seen: Any, infos: Any, key: str) -> Any:
    """A random action, one of those that are allowed if somebody says which."""
    for said in (seen, infos):
        mask = said.get(key) if isinstance(said, dict) else None
        if mask is not None and type(space).__name__ == "Discrete":
            return space.sample(mask=mask.astype("int8"))
    return space.sample()


def acting(
    env: Any, roles: Roles, given: tuple[Any, Any], watched: Watched | None = None
) -> Acting:
    """One of both.

    Raises
    ------
    ValueError
        Several agents, and no policies for them.
    NotEmulatedError
        Policies, and an environment that is no ``MultiAgentEnv``.
    """
    if isinstance(env, MultiAgentEnv):
        if not roles.several:
            raise ValueError(
                "The environment is a MultiAgentEnv and the configuration names no policies: call "
                "config.multi_agent(policies=..., policy_mapping_fn=...)."
            )
        return SeveralAgents(env, roles, given[0], watched)
    if roles.several:
        raise NotEmulatedError("several policies for an environment of one agent", "MultiAgentEnv")
    return OneAgent(env, roles, given, watched)
