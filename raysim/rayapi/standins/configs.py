"""``config.json`` of a model of the Hugging Face Hub that is not on this machine.

Real counterpart: ``transformers/configuration_utils.py`` and the hub's files. Looked for in this
order: a folder, or the hub's cache on this machine (transformers reads it); ``hub_models.yaml``,
then ``llm/known.py``, by the part of the name after the slash; the hub itself, where there is a
network. Weights are needed nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.llm import known
from raysim.rayapi.standins import pipelines
from raysim.rayapi.standins.said import asked_at, program_here, say

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

PROCESSOR = "preprocessor_config.json"
_WHERE = (
    "_configuration_file", "_from_auto", "_from_pipeline", "cache_dir", "force_download",
    "local_files_only", "proxies", "revision", "subfolder", "token", "trust_remote_code",
)  # fmt: skip
"""Of the arguments, those that transformers takes for finding the file."""
SAID = "{}: the config.json of its name that raysim knows ({})"


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.configuration_utils``."""

    def make(real: Any) -> Any:
        def get_config_dict(cls: Any, name: Any, /, **kwargs: Any) -> Any:
            if program_here() is None:
                return real.__func__(cls, name, **kwargs)
            name = pipelines.stands_for(name) if kwargs.get("subfolder") else name
            found = by_name(name)
            if found is None:
                return _of_the_hub(real.__func__, cls, name, kwargs)
            say(SAID.format(name, found["model_type"]))
            rest = {key: value for key, value in kwargs.items() if key not in _WHERE}
            return {**_classed(found), "_name_or_path": str(name)}, rest

        return classmethod(get_config_dict)

    r.set(_config_class(module), "get_config_dict", make)


_HEADS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "CAUSAL_LM", "CTC",
    "IMAGE_CLASSIFICATION",
)  # fmt: skip
"""Of a model's classes, the one that a checkpoint is of: the first that its type has."""


_STARTS = frozenset(["t5", "mt5"])
"""Whose checkpoints say what decoding begins with (the pad token), and whose class does not."""


def _classed(found: Mapping[str, Any]) -> dict[str, Any]:
    """With ``architectures``, as trainers ask for it."""
    from transformers.models.auto import modeling_auto

    tables = (getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in _HEADS)
    kind = found["model_type"]
    name = next((t[kind] for t in tables if kind in t), None)
    starts = {"decoder_start_token_id": 0} if kind in _STARTS else {}
    return {**starts, **found} if name is None else {"architectures": [name], **starts, **found}


def _of_the_hub(real: Any, cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return real(cls, name, **kwargs)
    except OSError as error:
        if Path(str(name)).exists():
            raise
        raise OSError(
            f"{asked_at()}: the config.json of {str(name)!r} is not on this machine, and raysim "
            "knows none of that name. It needs that file alone, no weights: put it into a folder "
            "and name the folder in place of the model."
        ) from error


def install_hub(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.utils.hub``: nobody asks the hub for files of models known by name."""
    r.around(module, "cached_files", _looked_for, program_here)
    if hasattr(module, "list_repo_templates"):
        r.around(module, "list_repo_templates", _templates, program_here)


def _templates(real: Any, _who: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
    if by_name(name) is not None:
        kwargs["local_files_only"] = True
    return real(name, *args, **kwargs)


def _looked_for(
    real: Any, _who: Any, path_or_repo_id: Any, filenames: Any, *args: Any, **kwargs: Any
) -> Any:
    name = str(path_or_repo_id)
    found = by_name(name)
    if found is None:
        return real(path_or_repo_id, filenames, *args, **kwargs)
    if list(filenames) == [PROCESSOR]:
        return [str(_processor(name))]
    return real(path_or_repo_id, filenames, *args, **{**kwargs, "local_files_only": True})


@cache
def _processor(name: str) -> Path:
    """How pictures or sounds become a model's input: its class's defaults but for sizes."""
    found = by_name(name) or {}
    said: dict[str, Any] = {}
    if "image_size" in found:
        said["size"] = {"height": found["image_size"], "width": found["image_size"]}
    if "num_mel_bins" in found:
        said["feature_size"] = found["num_mel_bins"]
    file = Path(mkdtemp(prefix="raysim-")) / PROCESSOR
    file.write_text(json.dumps(said))
    return file


def _config_class(module: ModuleType) -> Any:
    """Its name had a small letter before transformers 5."""
    return getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig


def by_name(name: Any) -> Mapping[str, Any] | None:
    """What is known of a model that this machine has no file of; None: nothing, or it has."""
    if Path(str(name)).exists() or is_cached(name, known.CONFIG):
        return None
    last = str(name).rpartition("/")[2].lower()
    return _listed(last) or _of_llms(str(name)) or _within(last)


def is_cached(name: Any, file: str) -> bool:
    """Whether the hub's cache on this machine has a file of a model."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(str(name), file), str)
    except ValueError:  # no name of the hub
        return False


def _of_llms(name: str) -> Mapping[str, Any] | None:
    try:
        return known.config_of(name)
    except ValueError:
        return None


@cache
def _within(name: str) -> Mapping[str, Any] | None:
    """Of a model that was tuned from a known one and has its name: ``Hermes-3-Llama-3.1-8B``."""
    lines = _lines().splitlines()
    keys = {k for line in lines if line[:1] != "#" for k in line.partition(": ")[0].split()}
    found = [k for k in (*keys, *known.HUB) if len(k) >= _LONG and f"-{k}-" in f"-{name}-"]
    best = max(found, key=len, default=None)
    return None if best is None else _listed(best) or _of_llms(best)


_LONG = 7
"""Letters of a name that is sought in others."""


@cache
def _lines() -> str:
    return (Path(__file__).parent / "hub_models.yaml").read_text("utf-8")


@cache
def _listed(name: str) -> Mapping[str, Any] | None:
    """Of ``hub_models.yaml``: only its line is read."""
    names = (name, known.tuned_from(name))
    for line in _lines().splitlines():
        keys, _, settings = line.partition(": ")
        if not line.startswith("#") and any(n in keys.split() for n in names):
            from ruamel.yaml import YAML

            found: Mapping[str, Any] = YAML(typ="safe", pure=True).load(settings)
            return found
    return None
