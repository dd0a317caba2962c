"""Diffusers' pipelines and models of the Hugging Face Hub that are not on this machine.

Real counterparts: ``diffusers/configuration_utils.py`` and ``pipelines/pipeline_utils.py``, and the
hub's files. In place of a name that ``hub_pipelines.yaml`` knows stands a folder of its configs
alone, which every part is then loaded from; a tokenizer's has its text encoder's config, by which
``tokens`` stands for it. Weights are needed nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from raysim.rayapi.standins.said import program_here, say

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

SAID = "{}: the configs of its name that raysim knows ({})"
_NAME = "pretrained_model_name_or_path"
_PREFIX = "raysim-"
_INDEX, _SCHEDULE, _CONFIG = "model_index.json", "scheduler_config.json", "config.json"


def install_configs(r: Replaced, module: ModuleType) -> None:
    """Of ``diffusers.configuration_utils``."""
    r.set(module.ConfigMixin, "load_config", _from_folder)


def install_pipelines(r: Replaced, module: ModuleType) -> None:
    """Of ``diffusers.pipelines.pipeline_utils``."""
    r.set(module.DiffusionPipeline, "from_pretrained", _from_folder)


def install_hub(r: Replaced, module: ModuleType) -> None:
    """Of ``huggingface_hub.hf_api``."""
    r.around(module, "model_info", _listed_files, program_here)


def _listed_files(real: Any, _who: Any, repo_id: Any, *args: Any, **kwargs: Any) -> Any:
    """Which files a model has, as scripts ask before they load a part."""
    folder = Path(str(stands_for(repo_id)))
    if not folder.is_dir():
        return real(repo_id, *args, **kwargs)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.json"))
    return SimpleNamespace(id=repo_id, siblings=[SimpleNamespace(rfilename=f) for f in files])


def _from_folder(real: Any) -> Any:
    def load(cls: Any, *args: Any, **kwargs: Any) -> Any:
        name = args[0] if args else kwargs.pop(_NAME)
        return real.__func__(cls, stands_for(name), *args[1:], **kwargs)

    return classmethod(load)


def stands_for(name: Any) -> Any:
    """A folder of configs in place of a name that is known; else the name."""
    if program_here() is None or Path(str(name)).exists() or not isinstance(name, str):
        return name
    last = name.rpartition("/")[2].lower()
    parts = _listed().get(last)
    if parts is None or _is_here(name):
        return name
    say(SAID.format(name, parts[""]["_class_name"]))
    return _folder(last)


def named(path: Any) -> str:
    """A name as the program knows it: of a part in such a folder, without where that is."""
    parts = Path(str(path)).parts
    made = next((i for i, part in enumerate(parts) if part.startswith(_PREFIX)), None)
    return str(path) if made is None else "/".join(parts[made + 1 :])


def _is_here(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(name, f), str) for f in (_INDEX, _CONFIG))


@cache
def _home() -> TemporaryDirectory[str]:
    """Gone when this process ends."""
    return TemporaryDirectory(prefix=_PREFIX)


@cache
def _folder(last: str) -> str:
    """With the files that real ones have, but weights and vocabularies."""
    folder, parts = Path(_home().name) / last, _listed()[last]
    folder.mkdir()
    whole = dict(parts[""])
    for part, config in parts.items():
        is_schedule = part == "scheduler"
        files = [(part, _SCHEDULE if is_schedule else _CONFIG)] if part else []
        if part.startswith("text_encoder"):
            files.append((part.replace("text_encoder", "tokenizer"), _CONFIG))
        for place, file in files:
            (folder / place).mkdir()
            (folder / place / file).write_text(json.dumps(config))
            whole[place] = _made_by(place, config)
    alone = len(parts) == 1
    (folder / (_CONFIG if alone else _INDEX)).write_text(json.dumps(whole))
    return str(folder)


def _made_by(place: str, config: Mapping[str, Any]) -> list[str]:
    """Library and class of a part, as a pipeline's index names them."""
    if "_class_name" in config:
        return ["diffusers", config["_class_name"]]
    if place.startswith("tokenizer"):
        return [
            "transformers",
            "T5TokenizerFast" if config["model_type"] == "t5" else "CLIPTokenizer",
        ]
    return ["transformers", config["architectures"][0]]


@cache
def _listed() -> Mapping[str, Mapping[str, Any]]:
    from ruamel.yaml import YAML

    text = (Path(__file__).parent / "hub_pipelines.yaml").read_text("utf-8")
    found = YAML(typ="safe", pure=True).load(text)
    return {name: parts for names, parts in found.items() for name in names.split()}
