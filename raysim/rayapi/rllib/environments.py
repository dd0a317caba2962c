"""The user's environments: really created in each env runner, and really stepped a while.

Real counterparts (ray 2.60): ``rllib/env/single_agent_env_runner.py``, ``algorithm.py``
(``_get_env_id_and_creator``), ``ray/tune/registry.py``.

The first steps of a runner's environments run the user's code, on random actions; the time they
take is that of other user code of the program (``compute``): declared, measured or from a table.
Later ones take what those took on average. So do lengths of episodes, whose ends cost a reset and
one pass of the module more.

Not modelled: what a policy does (observations and rewards of later steps), rendering.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

from raysim.rayapi.calls import begin_call, end_call, this_fiber
from raysim.rayapi.library_code import fiber_of, state_of
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.rllib.agents import Acting, Roles, acting
from raysim.rayapi.rllib.callbacks import OF_EPISODES, callers
from raysim.rayapi.rllib.connectors import Pieces
from raysim.rayapi.rllib.episodes import Watched
from raysim.rayapi.rllib.metrics import Logged
from raysim.rayapi.rllib.runners import Runner, Vector
from raysim.rayapi.session import Session
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import WAITS, Ask, Driver, Script, compute, sleep
from raysim.raycore.tasks import TaskError

REAL_STEPS = 200
"""Env steps of a runner that are really made, of all its environments together."""
LONGEST = 1_000
"""Steps after which an episode that evaluation waits for is taken to have ended."""
CREATORS: dict[str, Callable[[Any], Any]] = {}
"""``tune.register_env``."""


class EnvContext(dict[str, Any]):
    """``ray.rllib.env.env_context.EnvContext``: an environment's configuration, and where it is."""

    def __init__(
        self, env_config: dict[str, Any] | None, worker_index: int = 0, vector_index: int = 0,
        remote: bool = False, num_workers: int | None = None, recreated_worker: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(env_config or {})
        self.worker_index, self.vector_index = worker_index, vector_index
        self.remote, self.num_workers = remote, num_workers
        self.recreated_worker = recreated_worker


def register_env(name: str, env_creator: Callable[[Any], Any]) -> None:
    """``ray.tune.registry.register_env``."""
    if not callable(env_creator):
        raise TypeError("Second argument must be callable.", env_creator)
    CREATORS[name] = env_creator


def gymnasium() -> Any:
    """The package.

    Raises
    ------
    ModuleNotFoundError
        With what to install.
    """
    try:
        return import_module("gymnasium")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "RLlib's environments need gymnasium, which is not installed: pip install gymnasium",
            name="gymnasium",
        ) from error


def creator_of(env: Any) -> Callable[[EnvContext], Any]:
    """What makes an environment of ``config.env``.

    Raises
    ------
    ValueError
        No environment is said.
    """
    if env is None:
        raise ValueError(
            "The algorithm has no environment: call config.environment(env=...) with a registered "
            "name, an ID of gymnasium or a class."
        )
    if isinstance(env, str):
        if env in CREATORS:
            return CREATORS[env]
        gym = gymnasium()
        if env not in gym.registry and "." in env:
            module, _, name = env.rpartition(".")
            return creator_of(getattr(import_module(module), name))
        return lambda context: gym.make(env, **context)
    if isinstance(env, type) or callable(env):
        return cast("Callable[[EnvContext], Any]", env)
    raise ValueError(f"{env!r} is an invalid env specifier.")


@dataclass(kw_only=True)
class EnvProgram:
    """What the runners of one algorithm share."""

    session: Session
    driver: ProcessState
    creator: Callable[[EnvContext], Any]
    env_config: dict[str, Any]
    runners: int
    envs: int
    """Of each runner."""
    at_once: bool
    """Environments of a runner step side by side (``gym_env_vectorize_mode="async"``)."""
    seed: int | None
    given: tuple[Any, Any]
    """Spaces that the configuration says."""
    roles: Roles
    """Who acts."""
    config: Any = None
    connector: Any = None
    """What makes the user's pieces between environments and modules."""
    callbacks: Callable[[], list[Any]] = list
    """What makes a runner's."""
    metrics: Logged = field(default_factory=Logged)
    """What callbacks log."""
    views: dict[int, Runner] = field(default_factory=dict)
    """Runners as the user's functions see them, by index."""
    seen: dict[int, None] = field(default_factory=dict)
    """Indices of runners that have been there."""
    lengths: list[int] = field(default_factory=list)
    """Of episodes that have ended in real steps."""

    def runner(self, process: CoreProcess, index: int) -> UserEnvs:
        """Those of a runner."""
        state = self.driver if index == 0 else state_of(self.session, process)
        return UserEnvs(self, process, state, index)


class _Meter:
    """Stands for the task of a fiber of user code: what it takes passes, and is counted."""

    def __init__(self, process: CoreProcess) -> None:
        self._process = process
        self.spec = SimpleNamespace(kind="ACTOR_CREATION_TASK")
        """Memory that an environment declares is held as long as its runner lives."""
        self.core_s = self.wait_s = 0.0

    def compute(self, core_s: float, then: Callable[..., object], *, width: float = 1.0) -> None:
        """On the node's cores."""
        self.core_s += core_s * width
        self._process.compute(core_s, then, width=width)

    def sleep(self, delay_ns: int, then: Callable[..., object]) -> None:
        """Without using anything."""
        self.wait_s += delay_ns / 1e9
        self._process.after(delay_ns, then, None)


class UserEnvs:
    """``UserEnv`` of one runner."""

    def __init__(
        self, program: EnvProgram, process: CoreProcess, state: ProcessState, index: int
    ) -> None:
        self._program = program
        self._process = process
        self._state = state
        self._index = index
        self._recreated = index in program.seen
        program.seen[index] = None
        self._envs: list[Acting] = []
        self._ages: list[int] = []
        """Steps since the last reset."""
        self._taken = self._resets = 0
        self._core_s = self._wait_s = 0.0
        self._watched: list[Watched] = []
        self._pieces: Pieces | None = None
        self._called = callers(program.config, program.callbacks())
        self.vector: Any = None
        self.metrics = program.metrics
        program.views[index] = self._view = Runner(self, program.config, index)

    def make(self) -> Script:
        """Create and reset them."""
        meter, value = yield from self._run(self._make, "make_env")
        del meter
        return value

    def sample(self, count: int) -> Script:
        """The first ones really, the rest by what those took."""
        program = self._program
        real = min(count, ceil((REAL_STEPS - self._taken) / program.envs))
        if real > 0:
            meter, value = yield from self._run(partial(self._steps, real), "env.step")
            if isinstance(value, TaskError):
                return value
            self._core_s += meter.core_s
            self._wait_s += meter.wait_s
        yield from self._pass(count - max(0, real))
        return count * self._passes

    def evaluate(self, episodes: int) -> Script:
        """As long as those that have been seen to their end."""
        made = 0
        if not self._taken:
            made = ceil(REAL_STEPS / self._program.envs)
            value = yield from self.sample(made)
            if isinstance(value, TaskError):
                return value
        lengths = self._program.lengths or [LONGEST]
        steps = round(episodes * sum(lengths) / len(lengths))
        asked = ceil(steps / self._program.envs)
        yield from self._pass(asked - made)
        return steps, asked * self._passes

    @property
    def _passes(self) -> float:
        """Of the module for one step of each environment: a reset takes one more."""
        return 1.0 + self._resets / self._taken

    @property
    def agents(self) -> float:
        """That act in an env step, in the mean."""
        roles = self._program.roles
        return roles.acted.total() / roles.steps if roles.several and roles.steps else 1.0

    def _pass(self, count: int) -> Script:
        """The time of so many steps of all environments."""
        if count <= 0:
            return
        envs = self._program.envs
        core_s, wait_s = (count * envs * x / self._taken for x in (self._core_s, self._wait_s))
        width = envs if self._program.at_once else 1
        if core_s:
            yield compute(core_s / width, width)
        if wait_s:
            yield sleep(round(wait_s / width * 1e9))

    def _run(self, main: Callable[[], Any], name: str) -> Script:
        meter = _Meter(self._process)

        def begin(d: Driver) -> Any:
            fiber = fiber_of(self._state, main, d.resume, f"SingleAgentEnvRunner.{name}")
            meant: Any = meter
            fiber.running = meant
            d.process.after(d.take_lead(), lambda _: fiber.start())
            return WAITS

        value = yield Ask(begin)
        return meter, value

    # ---- in a fiber of the runner ----------------------------------------------------------------

    def _make(self) -> None:
        program, made = self._program, []
        for vector_index in range(program.envs):
            context = EnvContext(
                copy.deepcopy(program.env_config), self._index, vector_index,
                num_workers=program.runners, recreated_worker=self._recreated,
            )  # fmt: skip
            made.append((program.creator(context), context))
        envs = [env for env, _ in made]
        self.vector = Vector(envs, program.given)
        seen, action = program.given
        if program.connector is not None:
            self._pieces = Pieces(program.connector, self.vector)
            seen = self._pieces.space
        watches = self._pieces is not None or any(name in OF_EPISODES for name in self._called)
        for number, env in enumerate(envs):
            if watches:
                self._watched.append(Watched(env, program.roles, self._tell_of, number))
            watched = self._watched[number] if watches else None
            self._envs.append(acting(env, program.roles, (seen, action), watched))
        for _, context in made:
            self._tell("on_environment_created", env=self.vector, env_context=context)
        for number, acted in enumerate(self._envs):
            acted.begin((program.seed or 0) + self._index * program.envs + number)
        self._connect()
        self._ages = [0] * program.envs
        _paid()

    def _steps(self, count: int) -> None:
        for _ in range(count):
            for number, env in enumerate(self._envs):
                over = env.step()
                self._ages[number] += 1
                if over:
                    self._program.lengths.append(self._ages[number])
                    self._ages[number] = 0
                    self._resets += 1
            self._connect()
        self._taken += count * len(self._envs)
        self._program.roles.steps += count * len(self._envs)
        if "on_sample_end" in self._called:
            self._tell("on_sample_end", samples=[watched.episode for watched in self._watched])
        _paid()

    def _connect(self) -> None:
        episodes = [episode for watched in self._watched for episode in watched.taken()]
        if self._pieces is not None:
            self._pieces(episodes)

    def _tell_of(self, name: str, **said: Any) -> None:
        """Of an episode."""
        self._tell(name, env=self.vector, rl_module=None, **said)

    def _tell(self, name: str, **said: Any) -> None:
        """The user's callbacks of a runner."""
        for function in self._called.get(name, ()):
            function(env_runner=self._view, metrics_logger=self.metrics, **said)


def _paid() -> None:
    """What the stopwatch has counted passes now, while the meter is there."""
    fiber = this_fiber()
    begin_call(fiber)
    fiber.settle()
    end_call(fiber)
