"""``Algorithm``: what ``raylibs.rllib`` plays, over the program's environments.

Real counterpart: ``ray/rllib/algorithms/algorithm.py`` (2.60).

Not modelled: what is learned: there are no weights' values, no actions of a policy, no returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.failures import exception_of
from raysim.rayapi.library_code import play
from raysim.rayapi.rllib import checkpoints
from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
from raysim.rayapi.rllib.callbacks import OF_EPISODES, callers, listed
from raysim.rayapi.rllib.costed import costed, duration_of
from raysim.rayapi.rllib.environments import REAL_STEPS, EnvProgram, creator_of
from raysim.rayapi.rllib.metrics import Logged, merged
from raysim.rayapi.rllib.prices import Prices
from raysim.rayapi.rllib.resources import resource_request
from raysim.rayapi.rllib.results import Counted, check_stop, evaluated, say_once
from raysim.rayapi.rllib.runners import Group, Runner
from raysim.rayapi.tune.trainable import Trainable
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, now, spawn, wait_for
from raysim.raycore.tasks import InPlacementGroup, TaskError
from raysim.raylibs.rllib.actors import LIBRARY, EnvRunnerGroup
from raysim.raylibs.rllib.algorithm import Algorithm as Played
from raysim.raylibs.rllib.evaluation import evaluate
from raysim.raylibs.rllib.report import report_of
from raysim.raylibs.rllib.result import Iteration, TrainingResult
from raysim.raylibs.tune.resources import PlacementGroupFactory

NOT_LEARNED = (
    "RLlib's returns and losses are NaN: env steps and time are emulated, learning is not. "
    "A condition on them never ends a run; stop on training_iteration, "
    "num_env_steps_sampled_lifetime or time_total_s."
)
FEW_EPISODES = (
    f"callbacks of episodes are called in the first {REAL_STEPS} env steps of each env runner, on "
    "random actions."
)
UNUSED = ("module_to_env_connector", "learner_connector")


class Algorithm(Trainable):
    """``Algorithm``; also what a trial of Tune runs."""

    config_class: ClassVar[type[AlgorithmConfig]]
    plays: ClassVar[type[Played]]

    def __init__(
        self, config: Any = None, env: Any = None, logger_creator: Any = None, **_others: Any
    ) -> None:
        del logger_creator
        default = self.get_default_config()
        if isinstance(config, AlgorithmConfig):
            made = config if isinstance(config, type(default)) else (
                default.update_from_dict(config.to_dict())
            )  # fmt: skip
        else:
            made = default.update_from_dict(config or {})
        if env is not None:
            made.environment(env)
        _refuse_own_steps(type(self))
        made.validate()
        made.freeze()
        self.config = made
        self.counted = Counted()
        self.setup(made)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """A new one."""
        return cls.config_class()

    @classmethod
    def check_stop(cls, stop: Any, time_budget_s: Any) -> None:
        """Say what never ends a trial.

        Raises
        ------
        ValueError
            Nothing else ends it.
        """
        check_stop(stop, time_budget_s)

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """The driver's bundle, runners', evaluation's, learners'."""
        said = config.to_dict() if isinstance(config, AlgorithmConfig) else config
        return resource_request(cls.get_default_config().update_from_dict(said))

    @program_call
    def setup(self, config: Any) -> None:
        """Start all actors, and wait for them."""
        fiber = this_fiber()
        self._session, state = fiber.process.session, fiber.process
        self._state = state
        self._core = core = this_core(fiber)
        self.metrics = Logged()
        self._callbacks = [kind() for kind in listed(config.callbacks_class)]
        self._program = program = self._environments(config)
        self._roles = self._evaluates = program.roles
        self._prices = Prices(config=config, program=program)
        made = costed(config, program, self._prices, _group(core))
        self._costed = made
        self._began_ns = core.now_ns
        if state.is_driver:  # the script's own imports have been paid for
            core.imported.add(LIBRARY)
        self._played = self.plays(core, made, self._session.sim.rng, self._name())
        self._eval: EnvRunnerGroup | None = None
        self._stopped = False
        self._iterations: list[Iteration] = []
        self._play(lambda _: self._start())
        self._ready_ns = core.now_ns
        say_once(self._session, "learned", NOT_LEARNED)
        self._warn(config)
        self._call("on_algorithm_init", algorithm=self, metrics_logger=self.metrics)

    def _warn(self, config: Any) -> None:
        """Of what the user's functions are not asked."""
        called = callers(config, self._callbacks)
        if any(name in OF_EPISODES for name in called):
            say_once(self._session, "episodes", FEW_EPISODES)
        unused = [name for name in UNUSED if getattr(config, f"_{name}") is not None]
        if unused:
            text = f"{' and '.join(unused)}: not called, their time is not part of the prediction."
            say_once(self._session, text, text)

    def _name(self) -> str:
        return f"{type(self).__name__}-{self._session.libraries.setdefault('algorithms', 0)}"

    def _start(self) -> Script:
        failed = yield from self._played.start()
        if isinstance(failed, TaskError) or not self.config.evaluation_interval:
            return failed
        group, config = self._played.group, self.config.get_evaluation_config_object()
        if not config.num_env_runners and group.local is not None:
            self._eval, self._evaluated = group, self._program
            return None
        self._evaluated = program = self._environments(config)
        self._evaluates = program.roles
        made = costed(config, program, self._costed.price, self._costed.placement_group)
        self._eval = EnvRunnerGroup(self._core, made, self._session.sim.rng, "evaluation")
        return (yield from self._eval.start())

    def _environments(self, config: AlgorithmConfig) -> EnvProgram:
        """Of training or of evaluation."""
        return EnvProgram(
            session=self._session, driver=self._state,
            creator=creator_of(config.env), config=config,
            connector=config.get("_env_to_module_connector"),
            callbacks=lambda: [kind() for kind in listed(config.callbacks_class)],
            env_config=dict(config.env_config), runners=config.num_env_runners,
            envs=config.num_envs_per_env_runner,
            at_once=config.gym_env_vectorize_mode == "async", seed=config.seed,
            given=(config.observation_space, config.action_space), roles=config.roles(),
        )  # fmt: skip

    def _play(self, script: Callable[[CoreProcess], Script]) -> Any:
        """Run it; the user's own failure is raised."""
        value = play(script)
        failed = value if isinstance(value, TaskError) else self._played.group.error
        if isinstance(failed, TaskError):
            error = exception_of(failed, "")
            raise getattr(error, "cause", None) or error
        return value

    @program_call
    def step(self) -> dict[str, Any]:
        """One training iteration, and evaluation if it is its turn; Tune adds the rest."""
        if self._stopped:
            raise RuntimeError("The algorithm has been stopped.")
        interval = self.config.evaluation_interval
        turn = bool(interval) and (self.counted.iterations + 1) % interval == 0
        beside = turn and self.config.evaluation_parallel_to_training
        done, found = self._play(lambda _: self._train(beside=beside))
        self._iterations.append(done)
        result = self.counted.iteration(done, self.config, self._costed, self._roles)
        if turn:
            result["evaluation"] = evaluated(self._evaluates, *found) if beside else self.evaluate()
        group = self._played.group
        result["fault_tolerance"] = {
            "num_healthy_workers": sum(group.healthy), "num_remote_worker_restarts": group.restarts,
            "num_env_runners_dropped_lifetime": 0,
        }  # fmt: skip
        merged(result["env_runners"], self._program.metrics.reduce())
        merged(result, self.metrics.reduce())
        self._call("on_train_result", algorithm=self, metrics_logger=self.metrics, result=result)
        return result

    def _train(self, *, beside: bool) -> Script:
        if not beside:
            done = yield from self._played.iteration()
            return done, None
        over, ended = Event(), Event()
        assert self._eval is not None, "evaluation has runners"
        yield spawn(evaluate(self._eval, duration_of(self.config), over), then=ended.set)
        done = yield from self._played.iteration()
        over.set()
        found = yield wait_for(ended)
        return found if isinstance(found, TaskError) else (done, found)

    def train(self) -> dict[str, Any]:
        """``step``, with time and counters."""
        began_ns = self._now_ns()
        result = self.step()
        at_ns = self._now_ns()
        took_s = (at_ns - began_ns) / 1e9
        said = self.config.to_dict()
        return self.counted.filled(result, self._state, at_ns, took_s, said)

    @program_call
    def _now_ns(self) -> int:
        return int(play(_clock))

    @program_call
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Sample for evaluation: what ``result["evaluation"]`` holds."""
        del parallel_train_future
        self._call("on_evaluate_start", algorithm=self, metrics_logger=self.metrics)
        group = self._eval or self._played.group
        if not self.config.evaluation_interval and group.local is None:
            raise ValueError(
                "Cannot evaluate w/o an evaluation EnvRunnerGroup (`config.evaluation("
                "evaluation_interval=..)`) and w/o an env on the local EnvRunner!"
            )
        found = self._play(lambda _: evaluate(group, duration_of(self.config)))
        result = evaluated(self._evaluates, *found)
        self._call(
            "on_evaluate_end", algorithm=self, metrics_logger=self.metrics,
            evaluation_metrics=result,
        )  # fmt: skip
        return result

    @program_call
    def stop(self) -> None:
        """All its actors end."""
        if self._stopped:
            return
        self._stopped = True
        play(lambda _: self._end())
        result = TrainingResult(
            began_ns=self._began_ns, ready_ns=self._ready_ns, ended_ns=self._core.now_ns,
            iterations=tuple(self._iterations), runner_failures=self._played.group.failures,
            policy_lag=self._played.policy_lag,
        )  # fmt: skip
        self._session.env.reports.append(report_of(self._costed, result, ok=True))

    def _end(self) -> Script:
        yield from self._played.stop()
        if self._eval is not None and self._eval is not self._played.group:
            yield from self._eval.stop()

    def cleanup(self) -> None:
        """Of a trial."""
        self.stop()

    # ---- checkpoints -----------------------------------------------------------------------------

    @program_call
    def save_to_path(self, path: Any = None, **_others: Any) -> str:
        """Its counters and configuration, and files as large as the module's and optimizer's."""
        return checkpoints.save(self, path)

    @program_call
    def restore_from_path(self, path: Any, **_others: Any) -> None:
        """Counts on from there."""
        checkpoints.restore(self, path)

    def counts_on(self) -> None:
        """Told when a checkpoint has been restored."""

    @classmethod
    def from_checkpoint(cls, path: Any, **_others: Any) -> Algorithm:
        """A new one that counts on."""
        found = checkpoints.load(path)
        kind = found["class"] if cls is Algorithm else cls
        made: Algorithm = kind(config=found["config"])
        made.restore_from_path(path)
        return made

    def save(self, checkpoint_dir: Any = None) -> Any:
        """``save_to_path``, as a training result that has a checkpoint."""
        return checkpoints.saved(self, checkpoint_dir)

    def restore(self, checkpoint_path: Any) -> None:
        """``restore_from_path``."""
        self.restore_from_path(getattr(checkpoint_path, "checkpoint", checkpoint_path))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Of a trial."""
        checkpoints.write(self, checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Of a trial."""
        checkpoints.restore(self, checkpoint)

    # ---- its runners -----------------------------------------------------------------------------

    @property
    def env_runner_group(self) -> Group:
        """For functions of the user's."""
        return self._group_of(self._program, self._played.group)

    @property
    def eval_env_runner_group(self) -> Group | None:
        """The same of evaluation."""
        return None if self._eval is None else self._group_of(self._evaluated, self._eval)

    @property
    def env_runner(self) -> Any:
        """The driver's own."""
        return self._program.views.get(0)

    def _group_of(self, program: EnvProgram, group: EnvRunnerGroup) -> Group:
        def asked() -> None:
            self._play(lambda _: group.settle())

        def runners() -> list[Runner]:
            return [program.views[index] for index in sorted(program.views)]

        return Group(runners, program_call(asked))

    # ---- the rest --------------------------------------------------------------------------------

    @property
    def weights_bytes(self) -> dict[str, int]:
        """Of an env runner's modules."""
        return self._prices.weights_bytes

    @property
    def iteration(self) -> int:
        """Calls of ``train``."""
        return self.counted.iterations

    @property
    def training_iteration(self) -> int:
        """Calls of ``train``."""
        return self.counted.iterations

    def get_config(self) -> Any:
        """The configuration."""
        return self.config

    def _call(self, name: str, **said: Any) -> None:
        """The user's callbacks of the driver."""
        for each in self._callbacks:
            getattr(each, name)(**said)
        for function in listed(getattr(self.config, f"callbacks_{name}")):
            function(**said)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LEARNING:
            raise NotEmulatedError(f"Algorithm.{name}", _OF_LEARNING[name])
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        """As Ray prints it."""
        said = self.config
        return (
            f"{type(self).__name__}(env={said.env}; env-runners={said.num_env_runners}; "
            f"learners={said.num_learners}; multi-agent={said.is_multi_agent})"
        )

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Algorithm:
        raise TypeError("an Algorithm is not copied: it has actors")


_OF_LEARNING = dict.fromkeys(
    ("get_module", "get_weights", "set_weights", "get_policy", "compute_single_action",
     "compute_actions", "add_module", "remove_module", "learner_group"),
    "train(), evaluate(), their results and save_to_path()",
)  # fmt: skip


def _refuse_own_steps(kind: type) -> None:
    for name in ("training_step", "sample", "evaluate_offline"):
        if hasattr(kind, name):
            raise NotEmulatedError(
                f"{kind.__name__}.{name}, an algorithm of one's own",
                "PPO, IMPALA, APPO, DQN and SAC, with learners, modules, connectors and callbacks",
            )


def _clock(_process: CoreProcess) -> Script:
    return (yield now())


def _group(core: Any) -> Any:
    """The placement group of the trial that builds it."""
    spec = core.executor.actor
    strategy = None if spec is None else spec.options.strategy
    return strategy.placement_group_id if isinstance(strategy, InPlacementGroup) else None
