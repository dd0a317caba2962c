"""Label selectors: Kubernetes' syntax, checked with Ray's words, turned into matches.

Real counterpart: ``python/ray/_private/label_utils.py`` of ray 2.60, and
``src/ray/common/scheduling/label_selector.cc`` for ``!value`` and ``in(a, b)``.
"""

from __future__ import annotations

import re
from typing import Any

from raysim.raycore.tasks import LabelMatch

_WORD = r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_WORD_RE = re.compile(f"({_WORD})")
_PREFIX_RE = re.compile(rf"^(({_WORD})?(\.({_WORD})?)*)$")
_SELECTOR_RE = re.compile(rf"^!?(?:in)?\(({_WORD})(?:, ?({_WORD}))*\)$|^!?({_WORD})$")
_RULE = (
    "Value must be 63 chars or less beginning and ending with an alphanumeric character "
    "([a-z0-9A-Z]) with dashes (-), underscores (_),dots (.), and alphanumerics between."
)


def wrong_key(key: str) -> str | None:
    """What is wrong with a label's key."""
    prefix, _, name = key.rpartition("/")
    if "/" in key and (len(prefix) > 253 or not _PREFIX_RE.fullmatch(prefix)):
        return (
            f"Invalid label key prefix `{prefix}`. Prefix must be a series of DNS labels "
            "separated by dots (.), not longer than 253 characters in total."
        )
    if len(name) > 63 or not _WORD_RE.fullmatch(name):
        return f"Invalid label key name `{name}`. {_RULE.replace('Value', 'Name', 1)}"
    return None


def wrong_selector(selector: dict[str, str] | None) -> str | None:
    """What is wrong with a label selector."""
    for key, value in (selector or {}).items():
        wrong = wrong_key(key)
        if wrong is None and value and not _SELECTOR_RE.fullmatch(value):
            wrong = (
                f"Invalid label selector value `{value}`. The label selector value should contain "
                "optional operators and a label value. Supported operators are: ! and {'in'}. "
                + _RULE
            )
        if wrong is not None:
            return wrong
    return None


def wrong_fallback(strategies: list[Any] | None) -> str | None:
    """What is wrong with a fallback strategy."""
    for strategy in strategies or []:
        if not isinstance(strategy, dict):
            return "Each element in fallback_strategy must be a dictionary."
        if not strategy:
            return "Empty dictionary found in `fallback_strategy`."
        for option in strategy:
            if option != "label_selector":
                return (
                    f"Unsupported option found: '{option}'. "
                    "Only ['label_selector'] is currently supported."
                )
        selector = strategy.get("label_selector")
        if selector and not isinstance(selector, dict):
            return 'The value of "label_selector" must be a dictionary.'
        wrong = wrong_selector(selector)
        if wrong is not None:
            return wrong
    return None


def matches(selector: dict[str, str] | None) -> tuple[LabelMatch, ...]:
    """A checked selector as the scheduler reads it."""
    found = []
    for key, value in (selector or {}).items():
        negated = value.startswith("!")
        body = value.removeprefix("!").removeprefix("in")
        inside = body[1:-1] if body.startswith("(") else value.removeprefix("!")
        values = tuple(part.strip() for part in inside.split(","))
        found.append(LabelMatch(key=key, operator="!in" if negated else "in", values=values))
    return tuple(found)
