"""``ray.data.DataContext``: what a program sets, as the executor's settings.

Settings that change nothing that is emulated (progress bars, logging) are kept and ignored.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from weakref import WeakKeyDictionary

from raysim.rayapi.library_code import session_here
from raysim.rayapi.session import Session
from raysim.raylibs.data import defaults

_CONTEXTS: WeakKeyDictionary[Session, DataContext] = WeakKeyDictionary()
_KNOWN = [f.name for f in fields(defaults.DataContext)]


class DataContext:
    """One of each run."""

    def __init__(self) -> None:
        context = defaults.DataContext()
        for name in _KNOWN:
            setattr(self, name, getattr(context, name))
        self.enable_progress_bars = True
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

    @staticmethod
    def get_current() -> DataContext:
        """The run's."""
        return _CONTEXTS.setdefault(session_here(), DataContext())

    def settings(self) -> defaults.DataContext:
        """For an execution that begins now."""
        said = {name: getattr(self, name) for name in _KNOWN}
        said["preserve_order"] |= self.execution_options.preserve_order
        strategy = getattr(self.shuffle_strategy, "value", self.shuffle_strategy)  # type: ignore[attr-defined]
        return replace(defaults.DataContext(), **said | {"shuffle_strategy": strategy})


class ExecutionOptions:
    """``ray.data.ExecutionOptions``: order is kept if it says so; limits are not emulated."""

    def __init__(self) -> None:
        self.preserve_order = False
        self.locality_with_output = False
        self.verbose_progress = False
