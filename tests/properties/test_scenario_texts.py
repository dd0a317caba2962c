"""The two readers agree with the libraries they stand on, and know where things are."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import hjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.scenario.documents import Document
from raysim.scenario.hjson_text import parse_hjson
from raysim.scenario.yaml_text import parse_yaml_all

keys = st.text(alphabet="abc_ \"'#:{}/é0", min_size=1, max_size=5)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
data = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def check_marks(document: Document, text: str, value: Any, path: tuple[Any, ...] = ()) -> None:
    """Every value's mark is where its JSON text stands."""
    if path:
        where = document.where(path)
        assert where.line is not None
        assert where.column is not None
        rest = "\n".join(text.split("\n")[where.line - 1 :])[where.column - 1 :]
        opening = "{" if isinstance(value, dict) else "[" if isinstance(value, list) else None
        assert rest.startswith(opening or json.dumps(value, ensure_ascii=False))
    items = value.items() if isinstance(value, dict) else []
    for key, inner in [*items, *(enumerate(value) if isinstance(value, list) else [])]:
        check_marks(document, text, inner, (*path, key))


@settings(deadline=None)
@given(data, st.sampled_from([None, 2]))
def test_json_means_the_same_and_is_found_again(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    document = parse_hjson(text, "x.json")
    assert document.data == hjson.loads(text)
    check_marks(document, text, value)


@settings(deadline=None)
@given(data, st.sampled_from([None, 2]))
def test_json_is_yaml(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assume(re.search(r"\\ud[89a-f]", text) is None)  # YAML has no surrogate pairs
    (document,) = parse_yaml_all(text, "x.yaml")
    assert same(document.data, value)


def same(left: Any, right: Any) -> bool:
    """Equal, floats to the last bit and text that merely looks like a number kept as text."""
    if isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in right)
    if isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(right, float):
        return math.isclose(left, right, rel_tol=0, abs_tol=0)
    return left == right and type(left) is type(right)


@settings(deadline=None)
@given(st.text(alphabet="{}[]:,#/*'\"ab1-. \n\\", max_size=30).map(lambda t: "{" + t))
def test_relaxed_json_is_accepted_as_the_library_does(text: str) -> None:
    try:
        wanted = hjson.loads(text, object_pairs_hook=unique)
    except (ValueError, IndexError, OverflowError):
        wanted = None
    if wanted is None:
        with pytest.raises(ScenarioError) as caught:
            parse_hjson(text, "x.json")
        assert all(p.where is not None and p.where.line for p in caught.value.problems)
    else:
        assert parse_hjson(text, "x.json").data == wanted


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """DeepSpeed's hook: duplicate keys are an error."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate")
    return dict(pairs)
