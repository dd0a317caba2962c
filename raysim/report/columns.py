"""Columns of words for a page's script: each text once, and numbers in its place."""

from __future__ import annotations


class Words:
    """Texts, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._index: dict[str, int] = {}

    def number(self, word: str) -> int:
        """Of a text."""
        if word not in self._index:
            self._index[word] = len(self.words)
            self.words.append(word)
        return self._index[word]
