"""Typed access to the keys of a Hugging Face ``config.json``, with the place of every mistake.

A ``Reader`` collects problems instead of raising at the first: a wrong value is reported once and
its default used in its place, and ``check`` raises one ``ScenarioError`` with all of them. Like
``PretrainedConfig`` it accepts a family's own name for a key and the common one
(``attribute_map``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysim.errors import Location, Problem, ScenarioError

MOST = 2**24
"""Bound on every size: ten times the largest published vocabulary, so that a slip is an error."""
MOST_LAYERS = 4096
_FILE_BYTES_MAX = 64 * 2**20


class HfConfig(Mapping[str, Any]):
    """The keys of a ``config.json``, with its text for error positions."""

    def __init__(self, values: Mapping[str, Any], *, file: str, text: str = "") -> None:
        self.values_by_key = dict(values)
        self.file = file
        self.text = text

    def __getitem__(self, key: str) -> Any:
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)


def reader_of(config: Mapping[str, Any], file: str) -> Reader:
    """Reads of a configuration, which may know its own file and text."""
    if isinstance(config, HfConfig):
        return Reader(config, file=config.file, text=config.text)
    return Reader(config, file=file)


def called(config: Mapping[str, Any]) -> str:
    """What a configuration calls its model, else the family."""
    path = config.get("_name_or_path")
    return path if isinstance(path, str) and path else str(config["model_type"])


def read_config(path: str | Path) -> HfConfig:
    """Read a ``config.json``, unmodified.

    Raises
    ------
    ScenarioError
        The file cannot be read or is not a JSON object; names line and column.
    """
    file = str(path)
    try:
        if Path(path).is_file() and Path(path).stat().st_size > _FILE_BYTES_MAX:
            raise ScenarioError(_at(file, "not a config.json: larger than 64 MiB"))
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(_at(file, f"cannot be read: {error.strerror or error}")) from None
    except (UnicodeDecodeError, ValueError):
        raise ScenarioError(_at(file, "not a text file in UTF-8")) from None
    try:
        values = json.loads(text, object_hook=_special)
    except json.JSONDecodeError as error:
        where = Location(file=file, line=error.lineno, column=error.colno)
        raise ScenarioError(Problem(message=f"broken JSON: {error.msg}", where=where)) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(_at(file, f"broken JSON: {error}")) from None
    if not isinstance(values, dict):
        raise ScenarioError(_at(file, f"expected a JSON object, got {_say(values)}"))
    return HfConfig(values, file=file, text=text)


def _special(value: dict[str, Any]) -> Any:
    """Infinity as transformers 5 writes it: ``{"__float__": "Infinity"}``.

    Real counterpart: ``PreTrainedConfig._encode_special_floats``.
    """
    number = value.get("__float__")
    named = number in ("Infinity", "-Infinity", "NaN")
    return float(str(number)) if named and len(value) == 1 else value


def _at(file: str, message: str) -> Problem:
    return Problem(message=message, where=Location(file=file))


class Reader:
    """Typed reads of one JSON object; ``section`` descends into a nested one."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        file: str,
        text: str = "",
        path: tuple[str, ...] = (),
        problems: list[Problem] | None = None,
    ) -> None:
        self.values = values
        self.file = file
        self.text = text
        self.path = path
        self.problems: list[Problem] = [] if problems is None else problems

    def section(self, key: str) -> Reader:
        """A nested object such as ``text_config``; empty when absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(key, f"expected an object, got {_say(value)}")
            value = None
        return Reader(
            value or {},
            file=self.file,
            text=self.text,
            path=(*self.path, key),
            problems=self.problems,
        )

    def language(self) -> Reader:
        """``text_config`` of a model of text and images; keys outside of it are no text model's."""
        if not self.has("text_config") and self.has("hidden_size"):
            self.refuse(
                "hidden_size",
                f"stands outside of text_config, where {self.values.get('model_type')} looks for "
                "it; a model of text alone has a model_type of its own, which ends in _text",
            )
        return self.section("text_config")

    def refuse(self, key: str, message: str) -> None:
        """Report a problem with ``key``; the reader goes on."""
        full = ".".join((*self.path, key))
        self.problems.append(Problem(message=message, where=self.where(key), key=full))

    def where(self, key: str) -> Location:
        """Line and column of ``key`` in the text, as far as a search finds it."""
        start = 0
        for part in (*self.path, key):
            match = re.compile(rf"{re.escape(json.dumps(part))}\s*:").search(self.text, start)
            if match is None:
                return Location(file=self.file)
            start = match.start()
        line = self.text.count("\n", 0, start) + 1
        return Location(file=self.file, line=line, column=start - self.text.rfind("\n", 0, start))

    def check(self) -> None:
        """Raise all problems found so far.

        Raises
        ------
        ScenarioError
            There are any.
        """
        if self.problems:
            raise ScenarioError(self.problems)

    def get(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        """Name and value of the last of ``keys`` present; ``(keys[0], None)`` when none is."""
        present = [k for k in keys if k in self.values]
        return (present[-1], self.values[present[-1]]) if present else (keys[0], None)

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def integer(self, *keys: str, default: int, least: int = 1, most: int = MOST) -> int:
        """A whole number within bounds; absent: the default of the configuration class."""
        key, value = self.get(keys)
        if key not in self.values:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"expected a whole number, got {_say(value)}")
        elif not least <= value <= most:
            shown = value if abs(value) < 10**18 else f"{'-' if value < 0 else ''}a huge number"
            self.refuse(key, f"expected a whole number from {least} to {most:,}, got {shown}")
        else:
            return value
        return default

    def optional_integer(
        self, *keys: str, default: int | None = None, least: int = 1
    ) -> int | None:
        """A whole number, or None when absent or null."""
        key, value = self.get(keys)
        if key not in self.values:
            return default
        return None if value is None else self.integer(key, default=least, least=least)

    def probability(self, *keys: str, default: float = 0.0) -> float:
        """A dropout probability in [0, 1); null: 0."""
        key, value = self.get(keys)
        if key not in self.values:
            return default
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, f"expected a probability, got {_say(value)}")
        elif not 0 <= value < 1:
            self.refuse(key, f"expected a probability in [0, 1), got {_say(value)}")
        else:
            return float(value)
        return default

    def number(self, *keys: str, default: float | None) -> float | None:
        """A finite number, or None when null."""
        key, value = self.get(keys)
        if key not in self.values:
            return default
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            self.refuse(key, f"expected a number, got {_say(value)}")
            return default
        return float(value)

    def flag(self, *keys: str, default: bool) -> bool:
        """True or false; null: the default."""
        key, value = self.get(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, f"expected true or false, got {_say(value)}")
            return default
        return value

    def choice(self, *keys: str, default: str, among: Mapping[str, Any] | tuple[str, ...]) -> str:
        """One of the names in ``among``."""
        key, value = self.get(keys)
        if value is None:
            return default
        if not isinstance(value, str) or value not in among:
            self.refuse(key, f"expected one of {', '.join(among)}; got {_say(value)}")
            return default
        return value

    def integers(self, key: str) -> list[int] | None:
        """A list of whole numbers, or None when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) for v in value
        ):
            self.refuse(key, f"expected a list of whole numbers, got {_say(value)}")
            return None
        return value

    def texts(self, key: str, *, length: int, among: tuple[str, ...]) -> list[str] | None:
        """A list of ``length`` names from ``among``, or None when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) and v in among for v in value):
            self.refuse(key, f"expected a list of names among {', '.join(among)}")
            return None
        if len(value) != length:
            self.refuse(key, f"expected {length} entries, one per layer, got {len(value)}")
            return None
        return value

    def divides(self, key: str, divisor: int, what: str, dividend: int) -> None:
        """Report that ``divisor`` (the value of ``key``) must divide ``dividend``."""
        if dividend % divisor:
            self.refuse(key, f"{divisor} does not divide {what} ({dividend})")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _say(value: Any) -> str:
    """A short name of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]}..."
