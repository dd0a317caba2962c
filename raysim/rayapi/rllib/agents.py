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
        if not self.possible_agents:
            self.possible_agents = list(self.agents)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Users override, and may call it."""

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
            self.spaces[policy] = spaces_of(observation, action)

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

    def __init__(self, env: Any, roles: Roles, given: tuple[Any, Any]) -> None:
        self._env = env
        seen, action = given
        roles.introduce(
            AGENT,
            env.observation_space if seen is None else seen,
            env.action_space if action is None else action,
        )

    def begin(self, seed: int) -> None:
        """As in ``Acting``."""
        self._env.action_space.seed(seed)
        self._env.reset(seed=seed)

    def step(self) -> bool:
        """As in ``Acting``."""
        _, _, ended, cut, _ = self._env.step(self._env.action_space.sample())
        if ended or cut:
            self._env.reset()
        return bool(ended or cut)


class SeveralAgents:
    """A ``MultiAgentEnv``: those act who have been shown something."""

    def __init__(self, env: Any, roles: Roles) -> None:
        self._env, self._roles = env, roles
        for agent in env.possible_agents or env.agents:
            roles.introduce(agent, env.get_observation_space(agent), env.get_action_space(agent))
        self._awaited: list[Any] = []

    def begin(self, seed: int) -> None:
        """As in ``Acting``."""
        for number, agent in enumerate(self._roles.policy_of):
            self._env.get_action_space(agent).seed(seed + number)
        self._awaited = list(self._env.reset(seed=seed)[0])

    def step(self) -> bool:
        """As in ``Acting``."""
        env = self._env
        actions = {agent: env.get_action_space(agent).sample() for agent in self._awaited}
        self._roles.acted.update(actions.keys())
        seen, _, ended, cut, _ = env.step(actions)
        over = bool(ended.get("__all__") or cut.get("__all__"))
        if over:
            seen = env.reset()[0]
        self._awaited = [a for a in seen if over or not (ended.get(a) or cut.get(a))]
        return over


def acting(env: Any, roles: Roles, given: tuple[Any, Any]) -> Acting:
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
        return SeveralAgents(env, roles)
    if roles.several:
        raise NotEmulatedError("several policies for an environment of one agent", "MultiAgentEnv")
    return OneAgent(env, roles, given)
