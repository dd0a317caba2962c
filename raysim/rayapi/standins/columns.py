"""What stands for a row of a data set of the hub: each column's values, by its kind.

Real counterpart: the hub's files. A few rows are made, the bank, and stand for all others in turn:
of long texts fewer than of short ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.rayapi.standins.published import Column, Table
from raysim.rayapi.standins.text import length, text

BANK_CHARACTERS = 400_000
"""Of the texts of a bank, all together, about."""
BANK_ROWS = (48, 1000)
"""At least, at most."""
_PICTURES = 64
"""Rows of a bank with pictures or sounds."""


def bank_rows(table: Table, rows: int) -> int:
    """How many are made of so many."""
    if any(c.kind in ("image", "images", "grey", "audio") for c in table.columns):
        return min(rows, _PICTURES)
    each = sum(_characters(c) for c in table.columns)
    least, most = BANK_ROWS
    return min(rows, max(least, min(most, round(BANK_CHARACTERS / max(each, 1)))))


def _characters(column: Column) -> float:
    if column.kind in ("text", "pair"):
        return column.sizes[0]
    if column.kind in ("chat", "shares", "texts"):
        return column.sizes[0] * column.sizes[1]
    return 5.0


def value(column: Column, place: int, config: str) -> Any:
    """Of a column, in one of the bank's rows."""
    if column.kind == "pair":
        first, second = config.rpartition("-")[0].rpartition("-")[2], config[-2:]
        made = text(column.sizes[0], place)
        return {first or "en": made, second: made}
    if column.kind in _TURNS:
        return _turns(*_TURNS[column.kind], column, place)
    return _MADE[column.kind](column.sizes, place)


def _turns(
    roles: tuple[str, str], who: str, what: str, column: Column, place: int
) -> list[dict[str, str]]:
    """Of two columns alike in size, questions are the same and answers are not."""
    many, mean = int(column.sizes[0]), column.sizes[1]
    own = len(column.name)
    return [{who: roles[i % 2], what: text(mean, place + i + (i % 2) * own)} for i in range(many)]


_TURNS = {
    "chat": (("user", "assistant"), "role", "content"),
    "shares": (("human", "gpt"), "from", "value"),
}  # fmt: skip
"""Who speaks, and the keys of a turn."""


def _array(sizes: tuple[float, ...], _place: int) -> Any:
    import numpy as np

    return np.zeros([int(n) for n in sizes], np.int64).tolist()


def _text(sizes: tuple[float, ...], place: int) -> str:
    return text(sizes[0], place)


def _texts(sizes: tuple[float, ...], place: int) -> list[str]:
    return [text(sizes[1], place + i) for i in range(int(sizes[0]))]


def _words(sizes: tuple[float, ...], place: int) -> list[str]:
    return ["word"] * length(sizes[0], place)


def _tags(sizes: tuple[float, ...], place: int) -> list[int]:
    return [i % int(sizes[0]) for i in range(length(sizes[1], place))]


def _picture(mode: str) -> Callable[..., Any]:
    def made(sizes: tuple[float, ...], _place: int) -> Any:
        from PIL import Image

        return Image.new(mode, (int(sizes[0]), int(sizes[1])))

    return made


def _sound(sizes: tuple[float, ...], _place: int) -> dict[str, Any]:
    import numpy as np

    rate = int(sizes[1])
    samples = np.zeros(round(sizes[0] * rate), np.float32)
    return {"array": samples, "path": "0.wav", "sampling_rate": rate}


def _answers(_sizes: tuple[float, ...], place: int) -> dict[str, Any]:
    return {"text": ["the"], "answer_start": [place % 200]}


def _objects(sizes: tuple[float, ...], _place: int) -> dict[str, Any]:
    many = int(sizes[1])
    return {
        "id": list(range(many)), "area": [4096] * many, "bbox": [[0.0, 0.0, 64.0, 64.0]] * many,
        "category": [i % int(sizes[0]) for i in range(many)],
    }  # fmt: skip


_MADE: dict[str, Callable[..., Any]] = {
    "array": _array,
    "text": _text, "texts": _texts, "words": _words, "tags": _tags, "audio": _sound,
    "image": _picture("RGB"), "grey": _picture("L"), "answers": _answers, "objects": _objects,
    "images": lambda sizes, place: [_picture("RGB")(sizes, place)],
    "class": lambda sizes, place: place % int(sizes[0]),
    "int": lambda _sizes, place: place, "float": lambda _s, place: float(place % 5),
    "bool": lambda _sizes, place: place % 2 == 0,
    "bools": lambda sizes, place: [(place + i) % 2 == 0 for i in range(int(sizes[0]))],
}  # fmt: skip
