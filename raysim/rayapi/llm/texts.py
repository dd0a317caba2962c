"""Texts of programs as tokens, and tokens as text.

Real counterpart: a model's tokenizer and its chat template. With the ``tokenizers`` package and a
model's own ``tokenizer.json`` in the folder that was named, prompts are counted by it; else a token
is four characters (OpenAI's rule for English). What a model would say is not known: every token it
makes is one placeholder.

Not modelled: chat templates (so many tokens a message), images, audio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CHARACTERS = 4
"""Of a token, in English (help.openai.com, "What are tokens and how to count them?")."""
MESSAGE_TOKENS = 4
"""Around a message: role, begin and end (ChatML); the answer's own beginning is as long."""
FILLER = "tok "
"""Text of a token that was made: as long as one is counted."""
FILLER_ID = 0

Count = Callable[[str], int]


@cache
def counter(source: str) -> Count:
    """How tokens of texts for this model are counted."""
    file = Path(source) / "tokenizer.json"
    if file.is_file():
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return _by_length
        tokenizer = Tokenizer.from_file(str(file))
        return lambda text: max(1, len(tokenizer.encode(text).ids))
    return _by_length


def _by_length(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS))


def content_of(message: Any) -> str:
    """Text of a message: a string, or the text among its parts."""
    said = message.get("content") if hasattr(message, "get") else message.content
    if said is None or isinstance(said, str):
        return said or ""
    return "".join(p.get("text") or "" for p in said if hasattr(p, "get"))


def chat_tokens(messages: Sequence[Any], count: Count) -> tuple[int, int]:
    """Of a whole conversation with the answer's beginning, and of all before its last message."""
    each = [count(content_of(m)) + MESSAGE_TOKENS for m in messages]
    return sum(each) + MESSAGE_TOKENS, sum(each[:-1])


def said(tokens: int) -> str:
    """Text of so many tokens that were made."""
    return (FILLER * tokens).rstrip()


def said_of(first: int, after: int) -> str:
    """Text that token number ``first`` up to ``after`` add to what is there."""
    return said(after)[len(said(first)) :]
