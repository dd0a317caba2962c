"""``AlgorithmConfig``: what an algorithm is told, method by method.

Real counterpart: ``ray/rllib/algorithms/algorithm_config.py`` (2.60), the new API stack.

Not modelled: schedules of numbers that only learning needs (they are taken as they are).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from raysim.rayapi.compute import use_cores
from raysim.rayapi.fibers import HUB
from raysim.rayapi.rllib import settings
from raysim.rayapi.rllib.agents import MODULE, Roles
from raysim.rayapi.rllib.modules import RLModuleSpec, as_settings
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.rllib.costs import PROGRAM

UNSAID: Any = object()
LIBRARY = "rllib"
"""Of what a session keeps: whether RLlib has been imported."""


def imported() -> None:
    """``import ray.rllib`` loads torch and the rest: here with the first use of it in a session."""
    fiber = HUB.current
    if fiber is None:
        return
    session = fiber.process.session
    if fiber.process.is_driver and not session.libraries.setdefault(LIBRARY, False):
        session.libraries[LIBRARY] = True
        use_cores(fiber, PROGRAM.import_core_s, 1.0)


class AlgorithmConfig:
    """``AlgorithmConfig``; its methods return it."""

    defaults: ClassVar[dict[str, Any]] = {}
    """What an algorithm sets otherwise, or adds to ``training``."""

    def __init__(self, algo_class: type | None = None) -> None:
        imported()
        vars(self)["_is_frozen"] = False
        self.algo_class = algo_class
        self.in_evaluation = False
        for parameters in settings.METHODS.values():
            for name, value in parameters.items():
                self._keep(name, value)
        for name, value in self.defaults.items():
            self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        setattr(self, settings.ATTRIBUTES.get(name, name), copy.deepcopy(value))

    def _set(self, method: str, said: Mapping[str, Any]) -> Self:
        known = settings.METHODS[method]
        for name, value in said.items():
            if value is UNSAID:
                continue
            if name in settings.DEPRECATED:
                raise ValueError(
                    f"`{name}` has been deprecated. Use `{settings.DEPRECATED[name]}` instead."
                )
            mine = method == "training" and name in self.defaults
            if name not in known and not mine:
                raise TypeError(
                    f"{type(self).__name__}.{method}() got an unexpected keyword argument '{name}'"
                )
            if name in settings.REFUSED and value != known[name]:
                raise NotEmulatedError(f"config.{method}({name}=)", settings.REFUSED[name])
            setattr(self, settings.ATTRIBUTES.get(name, name), self._merged(name, value))
        return self

    def _merged(self, name: str, value: Any) -> Any:
        """What is kept of a setting that is said."""
        if name not in settings.MERGED or not isinstance(value, Mapping):
            return value
        before = getattr(self, settings.ATTRIBUTES.get(name, name))
        other_buffer = (
            name == "replay_buffer_config" and value.get("type", before["type"]) != before["type"]
        )
        return dict(value) if other_buffer else {**before, **value}

    def python_environment(self, **said: Any) -> Self:
        """Variables of processes; of no effect."""
        return self._set("python_environment", said)

    def resources(self, **said: Any) -> Self:
        """The driver's, and how bundles are placed."""
        return self._set("resources", said)

    def framework(self, framework: Any = UNSAID, **said: Any) -> Self:
        """torch."""
        if framework in ("tf", "tf2", "tfe"):
            raise NotEmulatedError(f"config.framework({framework!r})", "torch")
        return self._set("framework", {"framework": framework, **said})

    def api_stack(
        self, enable_rl_module_and_learner: Any = UNSAID,
        enable_env_runner_and_connector_v2: Any = UNSAID,
    ) -> Self:  # fmt: skip
        """The new one."""
        said = {
            "enable_rl_module_and_learner": enable_rl_module_and_learner,
            "enable_env_runner_and_connector_v2": enable_env_runner_and_connector_v2,
        }
        if any(value is not UNSAID and not value for value in said.values()):
            raise NotEmulatedError("RLlib's old API stack", "the new one, Ray's default")
        return self._set("api_stack", said)

    def environment(self, env: Any = UNSAID, **said: Any) -> Self:
        """What is sampled."""
        return self._set("environment", {"env": env, **said})

    def env_runners(self, **said: Any) -> Self:
        """Who samples."""
        return self._set("env_runners", said)

    def learners(self, **said: Any) -> Self:
        """Who updates."""
        return self._set("learners", said)

    def training(self, **said: Any) -> Self:
        """How."""
        return self._set("training", said)

    def callbacks(self, callbacks_class: Any = UNSAID, **said: Any) -> Self:
        """The user's functions; those of the driver are called."""
        return self._set("callbacks", {"callbacks_class": callbacks_class, **said})

    def evaluation(self, **said: Any) -> Self:
        """How often and how much."""
        return self._set("evaluation", said)

    def offline_data(self, **said: Any) -> Self:
        """Refused."""
        for name in said:
            if name not in settings.METHODS["offline_data"]:
                raise NotEmulatedError(f"config.offline_data({name}=)", settings.REFUSED["input_"])
        return self._set("offline_data", said)

    def multi_agent(self, **said: Any) -> Self:
        """Policies, and who acts by which.

        Raises
        ------
        ValueError
            Policies are not named by a dictionary or a collection.
        """
        policies = said.get("policies")
        if policies is not None and not isinstance(policies, Mapping | set | list | tuple):
            raise ValueError(
                "`policies` must be dict mapping PolicyID to PolicySpec OR a set/tuple/list of "
                "PolicyIDs!"
            )
        trained = said.get("policies_to_train")
        if callable(trained) or (trained is not None and not trained):
            raise NotEmulatedError(
                "config.multi_agent(policies_to_train=) as a function, or as nothing",
                "names of policies",
            )
        return self._set("multi_agent", said)

    def reporting(self, **said: Any) -> Self:
        """How long an iteration is."""
        return self._set("reporting", said)

    def checkpointing(self, **said: Any) -> Self:
        """Of no effect."""
        return self._set("checkpointing", said)

    def debugging(self, **said: Any) -> Self:
        """``seed``: of environments."""
        return self._set("debugging", said)

    def fault_tolerance(self, **said: Any) -> Self:
        """What happens when an env runner fails."""
        return self._set("fault_tolerance", said)

    def rl_module(self, **said: Any) -> Self:
        """The module."""
        return self._set("rl_module", said)

    def experimental(self, **said: Any) -> Self:
        """Whether mistakes are refused."""
        return self._set("experimental", said)

    # ---- what follows from it --------------------------------------------------------------------

    @property
    def includes(self) -> dict[str, Any]:
        """What the algorithm says of its default module."""
        return {}

    @property
    def model_config(self) -> dict[str, Any]:
        """What is said of the module, over what the algorithm says."""
        return {**self.includes, **as_settings(self._model_config)}

    @property
    def rl_module_spec(self) -> RLModuleSpec:
        """The user's, or the default one."""
        spec = self._rl_module_spec
        return spec if spec is not None else RLModuleSpec(model_config=self.model_config)

    @property
    def train_batch_size_per_learner(self) -> int:
        """Env steps of one update of one learner."""
        said = self._train_batch_size_per_learner
        return int(said if said is not None else self.train_batch_size // (self.num_learners or 1))

    @train_batch_size_per_learner.setter
    def train_batch_size_per_learner(self, value: int) -> None:
        self._train_batch_size_per_learner = value

    @property
    def total_train_batch_size(self) -> int:
        """Of all learners."""
        return self.train_batch_size_per_learner * (self.num_learners or 1)

    @property
    def samples_of_a_step(self) -> int:
        """Of a gradient step of one learner."""
        return int(self.minibatch_size or self.train_batch_size_per_learner)

    @property
    def is_multi_agent(self) -> bool:
        """There are policies, by other names than that of the default one."""
        return bool(self.policies) and set(self.policies) != {MODULE}

    def spec_of(self, policy: str) -> RLModuleSpec:
        """A policy's module: its own of ``MultiRLModuleSpec``, or that of all."""
        spec = self.rl_module_spec
        each = getattr(spec, "rl_module_specs", spec)  # of MultiRLModuleSpec
        if not isinstance(each, Mapping):
            return each
        default = RLModuleSpec(model_config=self.model_config)
        found: RLModuleSpec = each.get(policy, default)
        return found

    @property
    def is_atari(self) -> bool:
        """As said, or by the environment's name."""
        said = self._is_atari
        return bool(str(self.env).startswith("ALE/") if said is None else said)

    @property
    def is_offline(self) -> bool:
        """Never."""
        return False

    def roles(self) -> Roles:
        """Who acts in its environments, of whom nobody has been seen yet."""
        names = tuple(sorted(self.policies)) if self.is_multi_agent else (MODULE,)
        own = frozenset(name for name in names if self.spec_of(name).module_class is not None)
        if not self.is_multi_agent:
            return Roles(own=own, mask_key=self.action_mask_key)
        said = self.policies_to_train
        trained = names if said is None else tuple(name for name in names if name in said)
        mapping = self.policy_mapping_fn or (lambda *_, **__: MODULE)
        return Roles(
            policies=names, trained=trained, mapping=mapping, own=own,
            mask_key=self.action_mask_key,
        )  # fmt: skip

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps of each environment in one sample; the first runners take what is left over."""
        if self.rollout_fragment_length != "auto":
            return int(self.rollout_fragment_length)
        envs = self.num_envs_per_env_runner
        total = self.total_train_batch_size
        each, left = divmod(total, envs * (self.num_env_runners or 1))
        return (each + ((worker_index - 1) * envs < left and bool(left))) or 1

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """That of the evaluation's env runners."""
        if self.in_evaluation:
            return None
        said = self.evaluation_config
        if isinstance(said, AlgorithmConfig):
            found = said.copy(copy_frozen=False)
        else:
            found = self.copy(copy_frozen=False).update_from_dict(said or {})
        found.in_evaluation, found.evaluation_config = True, None
        found.num_env_runners = self.evaluation_num_env_runners
        return found

    # ---- as a dictionary -------------------------------------------------------------------------

    @classmethod
    def overrides(cls, **said: Any) -> dict[str, Any]:
        """A partial dictionary, for ``evaluation_config``."""
        default = cls()
        for name in said:
            if name not in default:
                raise KeyError(f"Invalid property name {name} for config class {cls.__name__}!")
        return {_translated(name): value for name, value in said.items()}

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """The defaults, and this."""
        return cls().update_from_dict(config_dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it, by RLlib's old names."""
        found = copy.deepcopy({k: v for k, v in vars(self).items() if k != "algo_class"})
        found.pop("_is_frozen")
        for name, old in _SPECIAL.items():
            if name in found:
                found[old] = found.pop(name)
        return found

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set what is in it, as the methods do."""
        where = {name: m for m, names in settings.METHODS.items() for name in names}
        for said, value in config_dict.items():
            name = _translated(said)
            if name in ("algo_class", "_is_frozen"):
                continue
            if name in settings.REFUSED and value != settings.METHODS[where[name]][name]:
                raise NotEmulatedError(f"{said!r} in a config", settings.REFUSED[name])
            setattr(self, settings.ATTRIBUTES.get(name, name), self._merged(name, value))
        return self

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Another one like it."""
        made = copy.deepcopy(self)
        vars(made)["_is_frozen"] = self._is_frozen if copy_frozen is None else copy_frozen
        return made

    def freeze(self) -> None:
        """No attribute is set any more."""
        vars(self)["_is_frozen"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if vars(self).get("_is_frozen"):
            raise AttributeError(
                f"Cannot set attribute ({name}) of an already frozen AlgorithmConfig!"
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # what is set by name above
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, _translated(name))

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, _translated(name))

    def __len__(self) -> int:
        return len(self.to_dict())

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        return getattr(self, _translated(name), default)

    def keys(self) -> Any:
        """As of a dictionary."""
        return self.to_dict().keys()

    def values(self) -> Any:
        """As of a dictionary."""
        return self.to_dict().values()

    def items(self) -> Any:
        """As of a dictionary."""
        return self.to_dict().items()

    # ---- what cannot be --------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise of settings that do not go together, as Ray does."""
        if not self._validate_config:
            return
        if self.gym_env_vectorize_mode not in ("sync", "async", "vector_entry_point"):
            self._value_error(
                f"`gym_env_vectorize_mode` ({self.gym_env_vectorize_mode}) must be a member of "
                "`gymnasium.VectorizeMode`! Allowed values are "
                "{'sync', 'async', 'vector_entry_point'}."
            )
        if not (self.enable_rl_module_and_learner and self.enable_env_runner_and_connector_v2):
            raise NotEmulatedError("RLlib's old API stack", "the new one, Ray's default")
        if self.framework_str != "torch":
            raise NotEmulatedError(f"config.framework({self.framework_str!r})", "torch")
        self._validate_evaluation()

    def _validate_evaluation(self) -> None:
        if not self.evaluation_num_env_runners and self.evaluation_parallel_to_training:
            self._value_error(
                "`evaluation_parallel_to_training` can only be done if "
                "`evaluation_num_env_runners` > 0! Try setting "
                "`config.evaluation_parallel_to_training` to False."
            )
        if self.evaluation_duration == "auto":
            if not self.evaluation_parallel_to_training:
                self._value_error(
                    "`evaluation_duration=auto` not supported for "
                    "`evaluation_parallel_to_training=False`!"
                )
        elif not isinstance(self.evaluation_duration, int) or self.evaluation_duration <= 0:
            self._value_error(
                f"`evaluation_duration` ({self.evaluation_duration}) must be an int and >0!"
            )

    def _value_error(self, message: str) -> None:
        if self._validate_config:
            raise ValueError(
                f"{message}\nTo suppress all validation errors, set "
                "`config.experimental(_validate_config=False)` at your own risk."
            )

    # ---- the algorithm ---------------------------------------------------------------------------

    def build_algo(self, env: Any = None, use_copy: bool = True) -> Any:
        """An ``Algorithm``."""
        if env is not None:
            self.env = env
        if self.algo_class is None:
            raise ValueError("A generic AlgorithmConfig has no algorithm to build.")
        return self.algo_class(config=self.copy() if use_copy else self)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """``build_algo``, by its old name."""
        return self.build_algo(*args, **kwargs)


_SPECIAL = {"lambda_": "lambda", "callbacks_class": "callbacks", "input_": "input",
            "framework_str": "framework"}  # fmt: skip


def _translated(name: str) -> str:
    if name in settings.DEPRECATED:
        raise ValueError(
            f"`{name}` has been deprecated. Use `{settings.DEPRECATED[name]}` instead."
        )
    return {old: new for new, old in _SPECIAL.items()}.get(name, name)
