"""Programs that use torch or DeepSpeed: what they import is replaced while they run.

Real counterpart: the packages installed on the workers. torch is loaded only for programs whose
text names it; what is replaced (``shapes.patches``, ``deepspeed.names``) is put back when the world
ends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from raysim.rayapi.standins.packages import packages_of_scripts
from raysim.rayapi.trackers import trackers_of_scripts

_NAMED = re.compile("torch|deepspeed|transformers|accelerate|rllib|vllm")
_LOADED_BEFORE = {
    "pandas": "pandas", "pyarrow": "pyarrow", "datasets": "datasets", "fastapi": "pydantic.v1",
    "pydantic": "pydantic.v1", "gymnasium": "gymnasium", "rllib": "gymnasium",
}  # fmt: skip
"""What to load for a name: it keeps the classes of ``datetime`` that it finds."""
_WORLD: list[ExitStack] = []
"""Of the world that is emulated now, if one is."""
_REPLACED: list[bool] = []
"""Whether it has its torch."""


def load_for(text: str, folder: Path | None = None) -> None:
    """Before a program with this text begins: it finds the torch of an emulated world.

    What lies in its ``folder`` under a package's name is imported in that one's place.
    """
    for name, module in _LOADED_BEFORE.items():
        own = folder is not None and ((folder / f"{name}.py").exists() or (folder / name).is_dir())
        if name in text and not own and find_spec(module.partition(".")[0]) is not None:
            with suppress(Exception):  # one that does not import: the program's import says so
                import_module(module)
    if _NAMED.search(text) and find_spec("torch") is not None:
        import_module("torch")
        replace()


def replace() -> None:
    """From here on, if a world is emulated and torch is loaded."""
    if not _WORLD or _REPLACED or "torch" not in sys.modules:
        return
    from raysim.rayapi.deepspeed.names import deepspeed_names
    from raysim.rayapi.huggingface.installed import huggingface_of_workers
    from raysim.rayapi.lightning.installed import lightning_of_workers
    from raysim.rayapi.shapes.patches import torch_of_workers
    from raysim.rayapi.vllm.names import vllm_names

    _REPLACED.append(True)
    _WORLD[-1].callback(_REPLACED.clear)
    replaced = _WORLD[-1].enter_context(torch_of_workers())
    _WORLD[-1].enter_context(deepspeed_names())
    _WORLD[-1].enter_context(vllm_names())
    _WORLD[-1].enter_context(huggingface_of_workers(replaced))
    _WORLD[-1].enter_context(lightning_of_workers(replaced))


def replaced() -> bool:
    """Whether a world is emulated that has its torch."""
    return bool(_REPLACED)


@contextmanager
def torch_world() -> Iterator[None]:
    """A world is emulated."""
    with ExitStack() as stack:
        stack.enter_context(trackers_of_scripts())
        stack.enter_context(packages_of_scripts())
        _WORLD.append(stack)
        stack.callback(_WORLD.pop)
        replace()
        yield
