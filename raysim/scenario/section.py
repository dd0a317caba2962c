"""What all scenario sections have in common, and the field types several of them use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from raysim.scenario.documents import shorten


class Section(BaseModel):
    """A part of the scenario: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=False,
        validate_default=True,
        protected_namespaces=(),
        defer_build=True,
    )


def _file_or_mapping(value: Any) -> Any:
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    if isinstance(value, dict):
        return value
    raise ValueError("expected a file name, or the content of such a file as a mapping")


def _file_or_documents(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        return value
    return _file_or_mapping(value)


FileOrMapping = Annotated[
    Any, BeforeValidator(_file_or_mapping), WithJsonSchema({"type": ["string", "object"]})
]
"""Path of a user's file, or what such a file says, written in place."""
FileOrDocuments = Annotated[
    Any,
    BeforeValidator(_file_or_documents),
    WithJsonSchema({"type": ["string", "object", "array"]}),
]
"""The same for files that may hold several documents."""


def _condition(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a condition such as '<= 14', got {shorten(value)}")


Condition = Annotated[str, BeforeValidator(_condition)]
"""Of ``targets``: an operator and a limit."""


def shorthand(key: str) -> BeforeValidator:
    """Lets a section be written as one text: ``optimizer: AdamW`` for ``{type: AdamW}``."""

    def expand(value: Any) -> Any:
        return {key: value} if isinstance(value, str) else value

    return BeforeValidator(expand)
