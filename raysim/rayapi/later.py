"""Modules that are changed, or others', while a world is emulated, imported before or in it.

Real counterpart: none. A program may import transformers in its middle, or never; importing it for
everybody would take seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


@contextmanager
def changed(changes: Mapping[str, Change]) -> Iterator[None]:
    """By module's name, what is done to it once it is there."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    finder = _Finder(changes)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def found_first(finder: MetaPathFinder, packages: Collection[str]) -> Iterator[None]:
    """Imports of these packages ask a finder of ours; what was imported comes back after it."""

    def imported() -> dict[str, ModuleType]:
        return {n: m for n, m in sys.modules.items() if n.partition(".")[0] in packages}

    real = imported()
    for name in real:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in imported():
            del sys.modules[name]
        sys.modules.update(real)


class _Finder(MetaPathFinder):
    """Looks at modules when they have been imported."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of those, as anybody else finds them."""
        change = self._changes.get(name)
        if change is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(Loader):
    """The module's own, and what comes after."""

    def __init__(self, real: Any, then: Change) -> None:
        self._real, self._then = real, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ever."""
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As ever, and look."""
        self._real.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
