"""DeepSpeed's JSON, or the YAML of ``accelerate config`` from which Accelerate makes it.

Real counterpart: ``DeepSpeedPlugin.__post_init__`` and ``set_mixed_precision`` of Accelerate's
``utils/dataclasses.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
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
}
"""DeepSpeed's keys and Accelerate's for them."""
_STAGE = 2
"""``zero_stage`` where the file has none."""
_ELSEWHERE = {
    "FSDP": "give it as train.fsdp",
    "MULTI_GPU": "it trains with DDP: leave deepspeed out",
    "NO": "it trains on one GPU: leave deepspeed out",
}


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
            return _translated(document)
    return read_hjson(path, shown)


def _translated(document: Document) -> Document:
    """The JSON that Accelerate gives DeepSpeed, its keys where the YAML has them."""
    kind, block = document.data["distributed_type"], document.data.get(_BLOCK)
    if kind != "DEEPSPEED":
        hint = _ELSEWHERE.get(str(kind), "expected DEEPSPEED")
        message = f"{shorten(kind)} in Accelerate's config; {hint}"
        raise ScenarioError(document.problem(("distributed_type",), message))
    if not isinstance(block, dict):
        raise ScenarioError(document.problem((_BLOCK,), "expected a mapping"))
    if block.get("deepspeed_config_file") not in (None, "none"):
        message = f"Accelerate reads {shorten(block['deepspeed_config_file'])}; give that file"
        raise ScenarioError(document.problem((_BLOCK, "deepspeed_config_file"), message))
    data: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        _ZERO: {"stage": _STAGE},
    }
    marks: dict[KeyPath, Mark] = {(): document.marks[()]} if () in document.marks else {}
    for path, name in _FROM.items():
        if block.get(name) not in (None, "none"):
            inner = data
            for step in path[:-1]:
                inner = inner.setdefault(str(step), {})
            inner[str(path[-1])] = block[name]
        if (_BLOCK, name) in document.marks:
            marks[path] = document.marks[_BLOCK, name]
    precision = document.data.get("mixed_precision", "no")
    if precision in ("fp16", "bf16", "fp8"):
        # Under fp8 everything else runs under autocast to bf16.
        data["fp16" if precision == "fp16" else "bf16"] = {"enabled": True}
    return replace(document, data=data, marks=marks)
