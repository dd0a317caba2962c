"""What `raysim check --explain KEY` and `--schema` print."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticUndefined

from raysim.errors import Problem, ScenarioError
from raysim.scenario.deepspeed_keys import STATUS
from raysim.scenario.documents import did_you_mean
from raysim.scenario.schema import ScenarioSection, known_keys, section_at, sections_in
from raysim.scenario.targets import METRICS

_FREE = {"hardware": "GROUP", "prices": "GROUP"}


def json_schema() -> dict[str, Any]:
    """JSON Schema of scenario files, for editors."""
    schema = ScenarioSection.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def explain(key: str) -> str:
    """A few lines about one key, such as ``train.micro_batch`` or ``zero_optimization.stage``.

    Raises
    ------
    ScenarioError
        There is no such key; the message has the nearest one.
    """
    every = dict(_all_keys())
    if key in every:
        return every[key]
    for full, text in every.items():
        if full.endswith(f".{key}"):
            return text
    if key in STATUS:
        return f"{key}   (DeepSpeed's JSON)\n    {STATUS[key]}"
    if key in METRICS:
        return f"targets.{key}\n    A limit such as '<= 14'; a bare number is in {METRICS[key]}."
    hint = did_you_mean(key, [*every, *(k.rsplit(".", 1)[-1] for k in every), *STATUS, *METRICS])
    raise ScenarioError(Problem(message=f"unknown key {key!r}{hint}"))


def _all_keys() -> list[tuple[str, str]]:
    """Every key of the format with its explanation; lists and groups by a placeholder."""
    found: list[tuple[str, str]] = []

    def walk(path: tuple[str | int, ...], shown: str) -> None:
        section = section_at(ScenarioSection, path)
        if section is None:
            return
        for key, name in known_keys(section).items():
            info = section.model_fields[name]
            full = f"{shown}.{key}" if shown else key
            full = full.removeprefix("jobs.").removeprefix("0.")
            default = "" if info.default in (None, PydanticUndefined, "") else info.default
            said = f"\n    default: {default}" if default != "" else ""
            required = "\n    required" if info.is_required() else ""
            found.append((full, f"{full}\n    {info.description}{said}{required}"))
            if next(sections_in(info.annotation), None) is not None and key != "sequential":
                inner = (*path, key, *((_FREE[key],) if key in _FREE else ()))
                inner = (*inner, 0) if key == "jobs" else inner
                walk(inner, ".".join([full, *([_FREE[key]] if key in _FREE else [])]))

    walk((), "")
    return found
