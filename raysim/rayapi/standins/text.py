"""English that is on every machine: what stands for the texts of a data set that is not.

Real counterpart: none. The words are those of Python's own help (``pydoc_data.topics``), cut to the
lengths that a column has. Lengths of a column spread as a log-normal with sigma 0.6 around their
mean (assumed), of which it has eight quantiles: so batches that are padded have few shapes. How
many characters make a token is the tokenizer's to say.
"""

from __future__ import annotations

import math
import re
from functools import cache
from statistics import NormalDist

SIGMA = 0.6
LENGTHS = 8
_STEP = 7919
"""Characters from one text's begin to the next one's; prime, so that they differ."""


@cache
def english() -> str:
    """Without its line ends."""
    from pydoc_data import topics

    return re.sub(r"\s+", " ", " ".join(topics.topics.values()))


def text(characters: float, place: int) -> str:
    """The text of a row, of a column with this mean length."""
    return cut(length(characters, place), place % LENGTHS)


def length(mean: float, place: int) -> int:
    """Of a row: rows have the spread's quantiles in turn."""
    return max(1, round(mean * _quantiles()[place * 3 % LENGTHS]))


@cache
def _quantiles() -> list[float]:
    """Whose mean is 1."""
    z = [NormalDist().inv_cdf((i + 0.5) / LENGTHS) for i in range(LENGTHS)]
    found = [math.exp(SIGMA * each) for each in z]
    return [each * LENGTHS / sum(found) for each in found]


def cut(characters: int, place: int) -> str:
    """So many of them, from a word's beginning on."""
    whole = english()
    begin = whole.find(" ", place * _STEP % (len(whole) // 2)) + 1
    found = whole[begin : begin + characters]
    while len(found) < characters:
        found += whole[: characters - len(found)]
    return found
