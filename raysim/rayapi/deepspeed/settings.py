"""DeepSpeed's JSON of a script, read as a scenario's is.

Real counterpart: ``deepspeed/runtime/config.py``. What DeepSpeed would refuse is refused with its
reason; keys that are not modelled are said once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.rayapi.deepspeed.written import document_of
from raysim.training.settings.deepspeed import DeepSpeedConfig, Optimizer

_HERE = {"tensor_parallel"}
"""Blocks of the JSON that scripts are emulated with, and scenarios are not."""


_SAID = ("zero_optimization", "gradient_clipping")
"""Where DeepSpeed does something else than the JSON says, without a word."""


class DeepSpeedConfigError(Exception):
    """``deepspeed.runtime.config.DeepSpeedConfigError``."""


def config_of(config: Any, args: Any) -> tuple[str, dict[str, Any]]:
    """What it is called, and the dictionary: of a path, a dictionary, or ``args``."""
    if config is None:
        config = getattr(args, "deepspeed_config", None)
    if config is None:
        raise AssertionError("DeepSpeed requires --deepspeed_config to specify configuration file")
    if isinstance(config, dict):
        return "config", config
    if Path(str(config)).is_file():
        try:
            return str(config), dict(document_of(str(config), {}).data)
        except ScenarioError as error:
            raise DeepSpeedConfigError(str(error)) from None
    try:
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(str(config)).decode())
    except ValueError:
        raise DeepSpeedConfigError(
            "Expected a string path to an existing deepspeed config, or a dictionary or a valid "
            f"base64. Received: {config}"
        ) from None
    return "config", found


def read(
    config: Any,
    args: Any,
    *,
    data_parallel: int,
    stages: int,
    client: Optimizer | None,
    say: Callable[[str], None],
) -> DeepSpeedConfig:
    """What DeepSpeed would run with; ``say`` is told of what is on and not modelled.

    Raises
    ------
    DeepSpeedConfigError
        What DeepSpeed, or raysim, refuses; each problem says why.
    """
    name, data = config_of(config, args)
    # By name: what reads users' files stands above this package.
    reader = import_module("raysim.scenario.deepspeed_json")
    documents = import_module("raysim.scenario.documents")
    script = reader.ScriptSettings(
        data_parallel=data_parallel,
        world=data_parallel * stages,
        pipeline_stages=stages,
        optimizer_type=client.type if client is not None else None,
        scenario=documents.Document(file="script", data={}),
    )
    try:
        found = reader.read_deepspeed(document_of(name, data), script)
    except ScenarioError as error:
        raise DeepSpeedConfigError(str(error)) from None
    silent = (each for each in found.silent if each.key.startswith(_SAID))
    for problem in (*found.warnings, *silent):
        if problem.key.partition(".")[0] not in _HERE:
            say(str(problem))
    settings: DeepSpeedConfig = found.config
    return settings
