"""Experiment trackers that a training script tells of its run: Weights & Biases, TensorBoard, ....

Real counterparts: ``wandb``, ``torch.utils.tensorboard``, ``mlflow``, .... Of a run that is only
predicted nothing is sent: where such a package is not installed, and ``wandb`` in any case, a
script finds one that takes whatever it is told and keeps nothing. Whoever only asks whether one is
installed gets the true answer, of ``wandb`` that it is.

Not modelled: what telling them takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, NoReturn, Self

_NEVER_REAL = frozenset(["wandb"])
"""Would send what is predicted as if it had been measured."""
_NEEDS = {
    "aim": "aim", "clearml": "clearml", "comet_ml": "comet_ml", "mlflow": "mlflow",
    "neptune": "neptune", "swanlab": "swanlab", "tensorboardX": "tensorboardX",
    "torch.utils.tensorboard": "tensorboard", "trackio": "trackio", "visdom": "visdom",
    "wandb": "wandb",
}  # fmt: skip
"""Modules, and the package that each needs."""
SAID = "raysim: {name} is told nothing: what the script logs there is dropped\n"


@contextmanager
def trackers_of_scripts() -> Iterator[None]:
    """While a world is emulated."""
    finder = _Finder()
    hidden = {name: sys.modules.pop(name) for name in _NEVER_REAL if name in sys.modules}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n, module in sys.modules.items() if isinstance(module, _Tracker)]:
            del sys.modules[name]
        sys.modules.update(hidden)


class Anything:
    """Takes every call, attribute and key."""

    def __init__(self, **own: Any) -> None:
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Whatever it is told."""
        return Anything()

    def __getitem__(self, _key: Any) -> Any:
        return Anything()

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Iterator[NoReturn]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "raysim"

    __fspath__ = __str__

    def update(self, *given: Any, **more: Any) -> None:
        """Settings of a run, which the script may ask for again."""
        for each in (*given, more):
            found = each if isinstance(each, dict) else getattr(each, "__dict__", {})
            vars(self).update({str(k): v for k, v in found.items()})


class _Tracker(ModuleType):
    """The package, as far as a script can tell."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _say(self)
        return Anything()


def _say(tracker: ModuleType) -> None:
    """Once, whoever has only imported it is not told."""
    if not vars(tracker).get("raysim_said"):
        vars(tracker)["raysim_said"] = True
        sys.stderr.write(SAID.format(name=tracker.__name__))


def _started(module: ModuleType) -> Any:
    """``wandb.init``: a run whose config is what it was given."""

    def init(*_args: Any, **said: Any) -> Any:
        _say(module)
        config = Anything()
        config.update(said.get("config") or {})
        module.config = config  # type: ignore[attr-defined]
        module.run = Anything(config=config)  # type: ignore[attr-defined]
        return module.run

    return init


class _Finder(MetaPathFinder):
    """Finds those that are not there."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For whoever imports one, not for who asks whether it is installed."""
        top = name if name in _NEEDS else name.partition(".")[0]
        if top not in _NEEDS or (top not in _NEVER_REAL and only_asks(sys._getframe(1))):  # noqa: SLF001
            return None
        if top not in _NEVER_REAL and PathFinder.find_spec(_NEEDS[top]) is not None:
            return None
        return ModuleSpec(name, _Loader(), is_package=True)


def only_asks(frame: FrameType | None) -> bool:
    """``importlib.util.find_spec``."""
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_filename.endswith(("util.py", "importlib.util>")):  # frozen or not
            return True
        frame = frame.f_back
    return False


class _Loader(Loader):
    """Of a tracker."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Without anything in it."""
        return _Tracker(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing has begun."""
        module.init, module.config = _started(module), Anything()  # type: ignore[attr-defined]
