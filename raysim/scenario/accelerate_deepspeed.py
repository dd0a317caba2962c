"""DeepSpeed's JSON, or the YAML of ``accelerate config`` from which Accelerate makes it.

Real counterpart: ``DeepSpeedPlugin.__post_init__`` and ``set_mixed_precision`` of Accelerate's
``utils/dataclasses.py``; ``_prepare_deepspeed`` of ``accelerator.py``. A file it points to is
looked for beside it, then as the command would find it from above or from here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.scenario.documents import Document, KeyPath, Mark, shorten
from raysim.scenario.hjson_text import read_hjson
from raysim.scenario.yaml_text import read_yaml

_BLOCK = "deepspeed_config"
_ZERO = "zero_optimization"
_FROM: dict[KeyPath, str] = {
    ("gradient_accumulation_steps",): "gradient_accumulation_steps",
    ("gradient_clipping",): "gradient_clipping",
    (_ZERO, "stage"): "zero_stage",
    (_ZERO, "offload_optimizer", "device"): "offload_optimizer_device",
    (_ZERO, "offload_optimizer", "nvme_path"): "offload_optimizer_nvme_path",
    (_ZERO, "offload_param", "device"): "offload_param_device",
    (_ZERO, "offload_param", "nvme_path"): "offload_param_nvme_path",
    (_ZERO, "stage3_gather_16bit_weights_on_model_save"): "zero3_save_16bit_model",
    ("seq_parallel_communication_data_type",): "seq_parallel_communication_data_type",
}
"""DeepSpeed's keys and Accelerate's for them."""
_STAGE = 2
"""``zero_stage`` where the file has none."""
_ELSEWHERE = {
    "FSDP": "give it as train.fsdp",
    "MULTI_GPU": "it trains with DDP: leave deepspeed out",
    "NO": "it trains on one GPU: leave deepspeed out",
}
_FRAMEWORKS = ("base_model", "model_name_or_path", "tokenizer")
"""Keys of axolotl's, LLaMA-Factory's and torchtune's YAML."""
_GROUPS = "parallelism_config"
_SEQUENCE = "parallelism_config_sp_size"
_NO_ENGINE_HAS = ("parallelism_config_tp_size", "parallelism_config_cp_size")


def read_deepspeed_file(path: Path, shown: str) -> Document:
    """A JSON, with comments and ``"auto"``, or Accelerate's YAML.

    Raises
    ------
    ScenarioError
        The file cannot be read, or Accelerate would start something else with it.
    """
    if path.suffix in (".yaml", ".yml"):
        document = read_yaml(path, shown)
        if isinstance(document.data, dict) and "distributed_type" in document.data:
            return _with_groups(document, _translated(document, path))
        if isinstance(document.data, dict) and (said := _framework(document)):
            raise ScenarioError(said)
    document = read_hjson(path, shown)
    if isinstance(document.data, dict) and "model_type" in document.data:
        message = "a Hugging Face config, not DeepSpeed's JSON; it is model.from (init: --from)"
        raise ScenarioError(document.problem(("model_type",), message, key=True))
    return document


def _framework(document: Document) -> Problem | None:
    """A training framework's own config, which names DeepSpeed's JSON at best."""
    key = next((key for key in _FRAMEWORKS if key in document.data), None)
    if key is None:
        return None
    named = document.data.get("deepspeed")
    file = f", {named}," if isinstance(named, str) else ""
    message = (
        f"a training framework's config, which is not read; give the DeepSpeed JSON{file} or "
        "Accelerate's config that it trains with, and say the rest in the scenario"
    )
    return document.problem((key,), message, key=True)


def pointed_to(document: Document, path: Path) -> Path | None:
    """The JSON that Accelerate's config at ``path`` names; None: it names none.

    Raises
    ------
    ScenarioError
        There is no such file.
    """
    block = document.data.get(_BLOCK)
    named = block.get("deepspeed_config_file") if isinstance(block, dict) else None
    if named in (None, "none"):
        return None
    here = path.parent
    places = (here / str(named), here / Path(str(named)).name, here.parent / str(named))
    found = next((place for place in (*places, Path(str(named))) if place.is_file()), None)
    if found is None:
        message = f"Accelerate reads {shorten(named)}, which is not there; give that file"
        raise ScenarioError(document.problem((_BLOCK, "deepspeed_config_file"), message))
    return found


def _with_groups(document: Document, made: Document) -> Document:
    """Ulysses' size, which Accelerate hands over as a group of ranks."""
    groups = document.data.get(_GROUPS)
    if not isinstance(groups, dict) or not isinstance(made.data, dict):
        return made
    for name in _NO_ENGINE_HAS:
        if groups.get(name) not in (None, 1):
            message = "is not simulated with DeepSpeed; use 1"
            raise ScenarioError(document.problem((_GROUPS, name), message))
    size = groups.get(_SEQUENCE)
    if size in (None, 1):
        return made
    path: KeyPath = (_GROUPS, _SEQUENCE)
    marks = dict(made.marks)
    if path in document.marks and made.file == document.file:
        marks["sequence_parallel_size",] = document.marks[path]
    return replace(made, data={"sequence_parallel_size": size, **made.data}, marks=marks)


def _translated(document: Document, path: Path) -> Document:
    """The JSON that Accelerate gives DeepSpeed, its keys where the YAML has them."""
    kind, block = document.data["distributed_type"], document.data.get(_BLOCK)
    if kind != "DEEPSPEED":
        hint = _ELSEWHERE.get(str(kind), "expected DEEPSPEED")
        message = f"{shorten(kind)} in Accelerate's config; {hint}"
        raise ScenarioError(document.problem(("distributed_type",), message))
    if not isinstance(block, dict):
        raise ScenarioError(document.problem((_BLOCK,), "expected a mapping"))
    if (named := pointed_to(document, path)) is not None:
        return read_hjson(named, str(named))
    data: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        _ZERO: {"stage": _STAGE},
    }
    marks: dict[KeyPath, Mark] = {(): document.marks[()]} if () in document.marks else {}
    for key, name in _FROM.items():
        if block.get(name) not in (None, "none"):
            inner = data
            for step in key[:-1]:
                inner = inner.setdefault(str(step), {})
            inner[str(key[-1])] = block[name]
        if (_BLOCK, name) in document.marks:
            marks[key] = document.marks[_BLOCK, name]
    precision = document.data.get("mixed_precision", "no")
    if precision in ("fp16", "bf16", "fp8"):
        # Under fp8 everything else runs under autocast to bf16.
        data["fp16" if precision == "fp16" else "bf16"] = {"enabled": True}
    return replace(document, data=data, marks=marks)
