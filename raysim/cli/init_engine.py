"""What a starter scenario trains with: DeepSpeed by its JSON, or what Accelerate starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError

Line = tuple[str, str]
"""Text of a scenario file and its comment."""
_TYPES = ("fp16", "bf16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The user's file, read."""

    config: Mapping[str, Any] | None = None
    """DeepSpeed's keys; None: another engine."""
    key: str = ""
    """Of ``train``, under which the file stands; empty: plain DDP."""
    files: tuple[Path, ...] = ()
    """To be copied, the one to name first."""
    precision: tuple[Line, ...] | None = None
    """What the file says of it; None: nothing."""
    recomputes: bool = False
    ranks: int | None = None
    """GPUs that the file is for."""
    release: Line | None = None
    """The release of DeepSpeed whose keys the JSON has."""


def read_engine(path: Path | None, starter: str | None) -> Engine:
    """The engine of the user's file, of the starter's JSON, or plain DDP without either.

    Raises
    ------
    ScenarioError
        The file cannot be read, or starts what is not simulated.
    """
    from raysim.scenario.accelerate_deepspeed import pointed_to, read_deepspeed_file
    from raysim.scenario.hjson_text import parse_hjson

    if path is None:
        config = None if starter is None else parse_hjson(starter, "ds_config.json").data
        return Engine(config=config, key="" if starter is None else "deepspeed")
    accelerate = _accelerate(path)
    kind = None if accelerate is None else str(accelerate.data["distributed_type"])
    if accelerate is not None and kind in ("FSDP", "MULTI_GPU", "NO"):
        return _without_deepspeed(path, accelerate.data, kind)
    document = read_deepspeed_file(path, str(path))
    if not isinstance(document.data, Mapping):
        raise ScenarioError(document.problem((), "expected a JSON object"))
    named = None if accelerate is None else pointed_to(accelerate, path)
    return Engine(
        config=document.data,
        key="deepspeed",
        files=(path,) if named is None else (path, named),
        ranks=None if accelerate is None else _processes(accelerate.data),
        release=_release(document.data),
    )


def _accelerate(path: Path) -> Any:
    """The YAML that ``accelerate config`` wrote; None: another file."""
    from raysim.scenario.yaml_text import read_yaml

    if path.suffix not in (".yaml", ".yml"):
        return None
    document = read_yaml(path, str(path))
    data = document.data
    return document if isinstance(data, dict) and "distributed_type" in data else None


def _processes(data: Mapping[str, Any]) -> int | None:
    """``num_processes``, of all machines."""
    count = data.get("num_processes")
    whole = isinstance(count, int) and not isinstance(count, bool) and count > 0
    return int(count) if whole and count is not None else None


def _without_deepspeed(path: Path, data: Mapping[str, Any], kind: str) -> Engine:
    """FSDP by the file itself; DDP, or one GPU, by what it says."""
    mixed = str(data.get("mixed_precision", "no")).lower()
    if kind == "FSDP":
        block = data.get("fsdp_config")
        said = block if isinstance(block, Mapping) else {}
        names = ("fsdp_activation_checkpointing", "activation_checkpointing")
        why = "parameters, as Accelerate stores them under mixed_precision"
        return Engine(
            key="fsdp",
            files=(path,),
            precision=(("precision: fp32", why),) if mixed in _TYPES else None,
            recomputes=any(said.get(name) is True for name in names),
            ranks=_processes(data),
        )
    if mixed == "fp8":
        message = f"{path}: mixed_precision fp8 outside of FSDP; say it with train.fp8"
        raise ScenarioError(message)
    precision = None
    if mixed in _TYPES:
        precision = (
            ("precision: fp32", "of parameters"),
            (f"ddp: {{autocast: {mixed}}}", "mixed_precision of Accelerate's config"),
        )
    return Engine(precision=precision, ranks=1 if kind == "NO" else _processes(data))


def _release(config: Mapping[str, Any]) -> Line | None:
    """An older release for keys and optimizers that newer ones refuse."""
    from raysim.scenario.deepspeed_keys import REMOVED, REMOVED_ZERO
    from raysim.scenario.deepspeed_release import LAST, ONE_BIT

    zero = config.get("zero_optimization")
    optimizer = config.get("optimizer")
    name = optimizer.get("type") if isinstance(optimizer, Mapping) else None
    gone = [key for key in REMOVED if key in config]
    gone += [key for key in REMOVED_ZERO if isinstance(zero, Mapping) and key in zero]
    gone += [str(name)] * (isinstance(name, str) and name.lower() in ONE_BIT)
    if not gone:
        return None
    return f"deepspeed_version: {LAST}", f"the last that has {gone[0]}"
