"""``ray.data.context``: what a program sets, as the executor's settings.

Settings that change nothing that is emulated (progress bars, logging) are kept and ignored.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from raysim.rayapi.library_code import session_here
from raysim.rayapi.session import Session
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of
from raysim.raylibs.data import defaults

_CONTEXTS: WeakKeyDictionary[Session, DataContext] = WeakKeyDictionary()
_OPTIONS = ("resource_limits", "exclude_resources")
"""Of an execution, in ``ExecutionOptions``."""
_KNOWN = [f.name for f in fields(defaults.DataContext) if f.name not in _OPTIONS]
DEFAULT_TARGET_MAX_BLOCK_SIZE = defaults.DataContext().target_max_block_size
DEFAULT_TARGET_MIN_BLOCK_SIZE = defaults.DataContext().target_min_block_size
DEFAULT_READ_OP_MIN_NUM_BLOCKS = defaults.DataContext().read_op_min_num_blocks


class ShuffleStrategy(str, Enum):  # noqa: UP042  (printed as Ray prints it)
    """``ray.data.context.ShuffleStrategy``."""

    SORT_SHUFFLE_PULL_BASED = "sort_shuffle_pull_based"
    SORT_SHUFFLE_PUSH_BASED = "sort_shuffle_push_based"
    HASH_SHUFFLE = "hash_shuffle"
    SHUFFLE_V2 = "shuffle_v2"
    GPU_SHUFFLE = "gpu_shuffle"
    HASH_SHUFFLE_V2 = "shuffle_v2"  # noqa: PIE796  (another name of the same)


class DataContext:
    """One of each run."""

    def __init__(self) -> None:
        context = defaults.DataContext()
        for name in _KNOWN:
            setattr(self, name, getattr(context, name))
        self.enable_progress_bars = True
        self.retried_map_errors: bool | list[str] = False
        self.max_map_retries = 0
        self.execution_options = ExecutionOptions()
        self._configs: dict[str, Any] = {}

    def get_config(self, key: str, default: Any = None) -> Any:
        """What a program has set under a name of its own."""
        return self._configs.get(key, default)

    def set_config(self, key: str, value: Any) -> None:
        """Set it."""
        self._configs[key] = value

    def remove_config(self, key: str) -> None:
        """It is not set."""
        self._configs.pop(key, None)

    def copy(self) -> DataContext:
        """Of a dataset, when it is made: later changes to this one are none of its."""
        return deepcopy(self)

    @staticmethod
    def get_current() -> DataContext:
        """The run's."""
        return _CONTEXTS.setdefault(session_here(), DataContext())

    def settings(self) -> defaults.DataContext:
        """For an execution that begins now."""
        said = {name: getattr(self, name) for name in _KNOWN}
        said["preserve_order"] |= self.execution_options.preserve_order
        said |= {name: getattr(self.execution_options, name).amounts() for name in _OPTIONS}
        strategy = getattr(self.shuffle_strategy, "value", self.shuffle_strategy)  # type: ignore[attr-defined]
        return replace(defaults.DataContext(), **said | {"shuffle_strategy": strategy})


DatasetContext = DataContext


@dataclass(init=False)
class ExecutionResources:
    """``ray.data.ExecutionResources``: of memory, nothing is emulated."""

    cpu: float
    gpu: float
    object_store_memory: float
    memory: float

    def __init__(
        self,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> None:
        self._said = (cpu, gpu, object_store_memory, memory)
        self.cpu, self.gpu = cpu or 0.0, gpu or 0.0
        self.object_store_memory, self.memory = object_store_memory or 0, memory or 0

    @classmethod
    def for_limits(cls, *said: float | None, **by_name: float | None) -> ExecutionResources:
        """What is not said has no limit."""
        given = cls(*said, **by_name)
        return cls(*(inf if each is None else each for each in given._said))

    def limits(self) -> ExecutionResources:
        """As limits: without one for what has not been said."""
        return type(self).for_limits(*self._said)

    def amounts(self) -> tuple[float, float, float]:
        """For the executor."""
        return self.cpu, self.gpu, self.object_store_memory


@dataclass
class ExecutionOptions:
    """``ray.data.ExecutionOptions``: order and limits; the rest is kept and ignored."""

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources.for_limits)
    exclude_resources: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = False
    actor_locality_enabled: bool = True
    verbose_progress: bool | None = None
    label_selector: dict[str, str] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Limits as Ray keeps them; labels are refused."""
        if name == "label_selector" and value:
            raise NotEmulatedError("ExecutionOptions(label_selector=)", "resource_limits=")
        if name in _OPTIONS:
            said = value or ExecutionResources()
            value = said.limits() if name == "resource_limits" else said
        object.__setattr__(self, name, value)


__getattr__ = getattr_of("ray.data.context")
