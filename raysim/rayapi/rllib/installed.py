"""What of RLlib is the installed Ray's own code: connectors, modules, episodes, losses, utilities.

Real counterparts (ray 2.60): ``rllib/{connectors,core,env,models,offline,policy,utils}`` and the
modules beside algorithms that torch needs. None of it knows of processes or time: it runs on
emulated Ray as a user's code does. Where no Ray is installed, the few names of ``names.py`` stand
in for it.

Not modelled: what importing it takes (``costs.py`` has RLlib's import as a whole).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

PREFERRED = ("core", "connectors", "utils")
"""Packages of ``ray.rllib`` that are the installed ones, if there are any, in place of ours."""
OURS = ("utils.replay_buffers",)
"""But not these."""
REFUSED = tuple(
    f"ray.rllib.{name}"
    for name in (
        "algorithms.bc", "algorithms.cql", "algorithms.dreamerv3", "algorithms.iql",
        "algorithms.marwil", "algorithms.tqc", "algorithms.registry", "algorithms.mock",
        "core.learner.learner_group", "env.env_runner_group", "env.env_runner",
        "env.single_agent_env_runner", "env.multi_agent_env_runner", "offline",
    )
)  # fmt: skip
"""What has processes or algorithms of its own: no import of it succeeds."""
FILES = {"ray.tune.utils": "_private/dict.py", "ray.tune.utils.util": "_private/dict.py"}
"""Where a module's functions are, if its own file would load more than they need."""
_LAZY: dict[str, tuple[str, ...]] = {
    "ray.rllib.models": ("catalog", "modelv2", "action_dist"),
    "ray.rllib.core.learner": ("learner",),
    "ray.rllib.utils.debug": ("summary", "deterministic"),
    "ray.rllib.evaluation": ("postprocessing",),
}  # fmt: skip
"""Packages whose ``__init__`` would load more than is there, and where their names are."""
_NOT_USED = {
    "ray.tune.utils.file_transfer": {"sync_dir_between_nodes": "save_to_path() of algorithms"},
    "ray.rllib.models.catalog": {
        "ModelCatalog": "rl_module(rl_module_spec=) of the new API stack",
        "MODEL_DEFAULTS": "DefaultModelConfig",
    },
}
"""What is imported by others, and refused when it is used: what to use instead."""
_LENIENT = ("ray.rllib.utils.annotations", "override")
"""Its classes have methods that ours have not: this mark is put on anything."""
_TAKEN = ("ray.rllib.", "ray._common.deprecation", *FILES, *_NOT_USED)


@cache
def folder() -> Path | None:
    """Of the Ray that is installed, if its RLlib is there."""
    ray = PathFinder.find_spec("ray")
    for place in (ray and ray.submodule_search_locations) or ():
        if Path(place, "rllib", "core", "columns.py").is_file():
            return Path(place)
    return None


def preferred(name: str) -> bool:
    """Whether a module below ``ray.rllib`` is the installed one in place of ours."""
    first = name.partition(".")[0]
    return first in PREFERRED and not name.startswith(OURS) and folder() is not None


def find(name: str) -> ModuleSpec | None:
    """Where the installed module of this name is; None: it is not taken from there."""
    place = folder()
    if place is None or not name.startswith(_TAKEN) or name.startswith(REFUSED):
        return None
    if name in _NOT_USED:
        held = {n: _Refused(f"{name}.{n}", instead) for n, instead in _NOT_USED[name].items()}
        return ModuleSpec(name, _Made(held))
    file = place / FILES.get(name, "/".join(name.split(".")[1:]) + ".py")
    if file.is_file():
        inside: list[str] | None = [] if name in FILES else None
        loader = Unpaid(name, str(file))
        return spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)
    package = file.with_suffix("")
    if not (package / "__init__.py").is_file():
        return None
    if name in _LAZY:
        spec = ModuleSpec(
            name, _Made({"__getattr__": _looking(name, _LAZY[name])}), is_package=True
        )
        spec.submodule_search_locations = [str(package)]
        return spec
    init = str(package / "__init__.py")
    return spec_from_file_location(
        name, init, loader=Unpaid(name, init), submodule_search_locations=[str(package)]
    )


def constant(module: str, name: str) -> Any:
    """What a module of the installed Ray calls ``name``, if it is written there as a literal.

    Raises
    ------
    KeyError
        It is not.
    """
    return _literals(module)[name]


@cache
def _literals(module: str) -> dict[str, Any]:
    place = folder()
    if place is None:
        return {}
    package = place.joinpath(*module.split(".")[1:])
    file = package.with_suffix(".py")
    if not file.is_file():
        file = package / "__init__.py"
    if not file.is_file():
        return {}
    found: dict[str, Any] = {}
    for line in ast.parse(file.read_text()).body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            found |= {t.id: line.value.value for t in line.targets if isinstance(t, ast.Name)}
    return found


class Unpaid(SourceFileLoader):
    """Loads a module without its host time being the program's."""

    def exec_module(self, module: ModuleType) -> None:
        """While the stopwatch of user code stands still; no other program runs meanwhile."""
        from raysim.rayapi.rllib.algorithm_config import imported  # its package imports this

        imported()  # a real import has loaded all of RLlib by now
        with _paused():
            super().exec_module(module)
        if module.__name__ == _LENIENT[0]:
            setattr(module, _LENIENT[1], lambda _cls: lambda method: method)


@contextmanager
def _paused() -> Iterator[None]:
    from raysim.rayapi.clock import host_ns
    from raysim.rayapi.fibers import HUB

    fiber = HUB.current
    if fiber is None or fiber.depth:
        yield
        return
    fiber.depth, since_ns = 1, host_ns()
    try:
        yield
    finally:
        fiber.depth = 0
        if fiber.slice_began_ns > 1:  # measured
            fiber.slice_began_ns += host_ns() - since_ns


class _Made(Loader):
    """Of a module that holds this."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes one."""

    def exec_module(self, module: ModuleType) -> None:
        """All there is to it."""
        vars(module).update(self._held)


def _looking(package: str, places: tuple[str, ...]) -> Any:
    def ask(attribute: str) -> Any:
        for place in () if attribute.startswith("__") else places:
            found = getattr(import_module(f"{package}.{place}"), attribute, None)
            if found is not None:
                return found
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}")

    return ask


class _Refused:
    """Stands for what is refused when it is used."""

    def __init__(self, name: str, instead: str) -> None:
        self._said = name, instead

    def __call__(self, *_args: Any, **_named: Any) -> None:
        raise NotEmulatedError(*self._said)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotEmulatedError(*self._said)
