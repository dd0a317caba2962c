"""What fills ``"auto"`` in DeepSpeed's JSON, and what happens when nothing does.

DeepSpeed itself drops ``"auto"`` and uses its default; the Hugging Face Trainer fills it from its
arguments and the model (``transformers/integrations/deepspeed.py``). Order here: the scenario's
``auto:`` block, the scenario's own fields, the Trainer's rules, DeepSpeed's default with a note.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.errors import Problem
from raysim.scenario.deepspeed_keys import status
from raysim.scenario.documents import Document, KeyPath, did_you_mean, dotted, shorten

HF_MICRO_BATCH = 8
"""``TrainingArguments.per_device_train_batch_size``."""

_BATCH = {
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "global_batch",
}
_DEFAULTS = {
    "zero_optimization.reduce_bucket_size": "5e8",
    "zero_optimization.allgather_bucket_size": "5e8",
    "zero_optimization.stage3_prefetch_bucket_size": "5e7",
    "zero_optimization.stage3_param_persistence_threshold": "1e5",
    "zero_optimization.overlap_comm": "true for stage 3 only",
    "gradient_clipping": "1.0",
    "fp16.enabled": "false",
    "bf16.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """What the training script knows and the JSON may leave open."""

    data_parallel: int
    """Data-parallel size the batch triple is completed with."""
    world: int
    pipeline_stages: int = 1
    tensor_parallel: int | None = None
    micro_batch: int | None = None
    gradient_accumulation_steps: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    optimizer_type: str | None = None
    """The script's own optimizer; None: the JSON's."""
    hidden_size: int | None = None
    hf_trainer: bool = False
    release: tuple[int, ...] = (0, 19, 8)
    """Of DeepSpeed."""
    auto: Mapping[str, Any] = field(default_factory=dict)
    scenario: Document
    """The scenario's train section, for positions."""


@dataclass(slots=True)
class Filled:
    """The JSON without any ``"auto"``, and what was said on the way."""

    data: dict[str, Any]
    errors: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)


def fill(document: Document, script: ScriptSettings) -> Filled:
    """Replace every ``"auto"`` and add batch sizes that only the scenario has."""
    filled = Filled(data=copy.deepcopy(document.data))
    used: set[str] = set()
    for path in list(_autos(document.data, ())):
        _fill_one(document, script, filled, path, used)
    _scenario_against_json(document, script, filled, used)
    for key in script.auto:
        if key not in used:
            filled.errors.append(_unused(document, script, key))
    return filled


def hf_bucket_size(name: str, hidden_size: int) -> int | None:
    """The Trainer's value of a bucket size: h*h, 0.9*h*h, 10*h."""
    rules = {
        "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    return rules.get(name)


def _autos(data: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Paths of every ``"auto"``, except where DeepSpeed means the word itself."""
    if data == "auto" and path[:2] != ("zero_optimization", "zenflow"):
        if path not in (("pipeline", "stages"), ("data_types", "keep_in_fp32_modules")):
            yield path
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _autos(value, (*path, key))


def _fill_one(
    document: Document, script: ScriptSettings, filled: Filled, path: KeyPath, used: set[str]
) -> None:
    """Put a value in place of one ``"auto"``, or drop the key as DeepSpeed does."""
    name = dotted(path)
    parent: Any = filled.data
    for step in path[:-1]:
        parent = parent[step]
    key = str(path[-1])
    for candidate in (name, key, name.removesuffix(".enabled")):
        if candidate in script.auto:
            used.add(candidate)
            parent[key] = script.auto[candidate]
            return
    value, why = _from_scenario(name, script)
    if value is not None:
        parent[key] = value
        filled.notes.append(document.problem(path, f'"auto" becomes {shorten(value)}, {why}'))
        return
    del parent[key]
    if status(path) == "modelled" and name not in _BATCH:
        default = _DEFAULTS.get(name, "default")
        message = f'"auto" and nothing in the scenario sets it; using DeepSpeed\'s {default}'
        filled.notes.append(document.problem(path, message))


def _from_scenario(name: str, script: ScriptSettings) -> tuple[Any, str]:
    """A value and where it is from; None when nothing says it."""
    if name in _BATCH:
        value = getattr(script, _BATCH[name])
        if value is None and script.hf_trainer and name == "train_micro_batch_size_per_gpu":
            return HF_MICRO_BATCH, "the Trainer's per_device_train_batch_size"
        return value, f"the scenario's {_BATCH[name]}"
    if name in ("fp16.enabled", "bf16.enabled") and script.precision is not None:
        return name.startswith(script.precision), "the scenario's precision"
    if name == "gradient_clipping" and script.hf_trainer:
        return 1.0, "the Trainer's max_grad_norm"
    if script.hidden_size is not None:
        size = hf_bucket_size(name, script.hidden_size)
        if size is not None:
            return size, f"the Trainer's rule for hidden size {script.hidden_size}"
    return None, ""


def _scenario_against_json(
    document: Document, script: ScriptSettings, filled: Filled, used: set[str]
) -> None:
    """Batch sizes the JSON leaves out come from the scenario; those it states must agree."""
    for key, name in _BATCH.items():
        wanted, given = getattr(script, name), document.data.get(key)
        if key in script.auto and given is None:
            used.add(key)
            filled.data[key] = script.auto[key]
        elif wanted is not None and given is None:
            filled.data[key] = wanted
            message = f"{document.file} has no {key}; the scenario's {wanted} is used"
            filled.notes.append(script.scenario.problem((_shown(name, script),), message))
        if wanted is None or filled.data.get(key) in (None, wanted):
            continue
        message = (
            f"{wanted} differs from {key}: {shorten(filled.data[key])} in {document.file}; "
            'make them equal, or set the JSON\'s value to "auto"'
        )
        filled.errors.append(script.scenario.problem((_shown(name, script),), message))


def _shown(name: str, script: ScriptSettings) -> str:
    """The key the user wrote: a global batch may be given in tokens."""
    if name == "global_batch" and script.scenario.data.get("global_batch") is None:
        return "global_batch_tokens"
    return name


def _unused(document: Document, script: ScriptSettings, key: str) -> Problem:
    """An ``auto:`` entry for which the JSON has no ``"auto"``."""
    autos = [dotted(path) for path in _autos(document.data, ())]
    near = did_you_mean(key, [*autos, *(name.rsplit(".", 1)[-1] for name in autos)])
    message = f'no "auto" of that name in {document.file}{near}'
    return script.scenario.problem(("auto", key), message, key=True)
