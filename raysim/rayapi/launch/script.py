"""A script as one process has it: ``__main__``, ``sys.argv``, and the modules beside it.

Real counterpart: ``python -u train.py`` of a launcher. Modules that come from the script's own
folder, or from the current one, are the process's own: what one rank keeps in a global of them, the
others do not see. Installed packages are shared by all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.rayapi import threads
from raysim.rayapi.tracebacks import INSTALLED, NOT_THEIRS

_NOT_OWN = (*INSTALLED, *NOT_THEIRS)


class Script:
    """What changes hands when the process runs.

    Parameters
    ----------
    file, argv
        Of the script.
    package
        Of a module that ``-m`` runs; empty: a script.
    """

    __slots__ = ("_before", "_folders", "_known", "_modules", "argv", "died", "module")

    def __init__(self, file: Path, argv: list[str], package: str) -> None:
        self.module = ModuleType("__main__")
        self.module.__dict__.update(
            __file__=str(file.resolve()), __builtins__=__builtins__, __package__=package or None
        )
        self.argv = argv
        self.died: Callable[[str], object] | None = None
        """Told when the process is killed."""
        self._folders = (f"{file.resolve().parent}/", f"{Path.cwd()}/")
        self._modules: dict[str, ModuleType] = {}
        self._known = 0
        self._before: tuple[ModuleType, list[str]] | None = None

    def run(self, code: Any) -> None:
        """To its end, and that of its threads."""
        exec(code, self.module.__dict__)  # noqa: S102  (what running means)
        threads.join_all()

    def call(
        self, code: Any, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """A function of the script, or of a module, in a process that ``spawn`` has started."""
        self.module.__dict__["__name__"] = "__mp_main__"
        exec(code, self.module.__dict__)  # noqa: S102  (what a child imports)
        here = self.module
        if function.__module__ not in ("__main__", "__mp_main__"):
            here = import_module(function.__module__)
        attrgetter(function.__qualname__)(here)(*args, **named)
        threads.join_all()

    def enter(self) -> None:
        """A slice of it begins."""
        self._before = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = self.module, self.argv
        sys.modules.update(self._modules)
        self._known = len(sys.modules)

    def leave(self) -> None:
        """It waits, or has ended."""
        assert self._before is not None, "a slice begins before it ends"
        new = len(sys.modules) - self._known
        for name in list(islice(reversed(sys.modules), max(0, new))):
            if self._is_own(sys.modules[name]):
                self._modules[name] = sys.modules[name]
        for name in self._modules:
            sys.modules.pop(name, None)
        self.argv = sys.argv
        sys.modules["__main__"], sys.argv = self._before

    def _is_own(self, module: Any) -> bool:
        try:
            places = iter(getattr(module, "__path__", ()))
        except (KeyError, TypeError):  # of a package that failed, or a stand-in that has any name
            return False
        path = str(getattr(module, "__file__", None) or next(places, ""))
        return path.startswith(self._folders) and not path.startswith(_NOT_OWN)
