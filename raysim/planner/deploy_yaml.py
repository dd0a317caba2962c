"""YAML for tools that read YAML 1.1, as PyYAML does: there ``no`` is false, ``12:30`` a number."""

from __future__ import annotations

import re
from typing import Any

from raysim.results.result import yaml_text

OTHERWISE = re.compile(
    r"(?:y|n|yes|no|on|off|true|false|null|~)|[-+]?[\d_]+(?::[0-5]?\d)+(?:\.[\d_]*)?|[-+]?0[\d_]+"
    r"|[-+]?[\d_.]+",
    re.IGNORECASE,
)
"""Strings that YAML 1.1 takes for something else."""


def deploy_yaml(value: dict[str, Any]) -> str:
    """``value`` as block YAML, with quotes around what would be read as another type."""
    return yaml_text(_quoted(value))


def _quoted(value: Any) -> Any:
    from ruamel.yaml.scalarstring import SingleQuotedScalarString

    if isinstance(value, dict):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    if isinstance(value, str) and OTHERWISE.fullmatch(value):
        return SingleQuotedScalarString(value)
    return value
