"""Weights that a training script downloads: their values are nobody's business.

Real counterparts: ``torch/hub.py``, as torchvision asks it (``resnet50(weights=...)``), and timm's
``pretrained=True``. A file that is not on this machine stands for weights of the shapes that the
model has; one that is there is read. What a script makes of such weights by name (renames, drops)
is empty, and loading that strictly fails as ever.

Not modelled: the time that downloads take.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlparse

import torch

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

SAID = "{} is not on this machine: the weights that it holds are taken to be loaded"


class Unread(dict[str, Any]):
    """A state dict that nobody has read."""

    def pop(self, *_: Any) -> Any:
        """Whatever is not wanted is gone."""
        return None

    def __delitem__(self, _key: str) -> None:
        return None

    def __missing__(self, _key: str) -> Unread:
        return self  # as ``checkpoint["model"]`` asks

    def get(self, _key: str, default: Any = None) -> Any:
        """A part of it, likewise."""
        return self if default is None or isinstance(default, dict) else default


def install(r: Replaced) -> None:
    """Of workers with GPUs."""
    r.around(torch.hub, "load_state_dict_from_url", _from_url)
    r.around(torch.hub, "list", _listed)
    r.around(torch.nn.Module, "load_state_dict", _load)


def install_timm(r: Replaced, module: ModuleType) -> None:
    """Of ``timm.models._hub``."""
    r.around(module, "load_state_dict_from_hf", _from_hub)


def _from_hub(_real: Any, steps: Steps, model_id: str, *_args: Any, **_kwargs: Any) -> Unread:
    steps.say(SAID.format(model_id))
    return Unread()


def _from_url(real: Any, steps: Steps, url: str, *args: Any, **kwargs: Any) -> Any:
    folder = kwargs.get("model_dir") or (args[0] if args else None)
    folder = folder or Path(torch.hub.get_dir()) / "checkpoints"
    name = kwargs.get("file_name") or Path(urlparse(url).path).name
    if (Path(folder) / name).exists():
        return real(url, *args, **kwargs)
    steps.say(SAID.format(name))
    return Unread()


def _listed(real: Any, steps: Steps, github: str, *args: Any, **kwargs: Any) -> Any:
    """The models of a repository: none where there is no network."""
    try:
        return real(github, *args, **kwargs)
    except URLError:
        steps.say(f"torch.hub.list({github!r}): not on this machine, no model of it is listed")
        return []


def _load(real: Any, _steps: Steps, module: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(args[0] if args else kwargs.get("state_dict"), Unread):
        return torch.nn.modules.module._IncompatibleKeys([], [])  # noqa: SLF001  (its answer)
    return real(module, *args, **kwargs)
