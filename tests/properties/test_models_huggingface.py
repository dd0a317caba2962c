"""Any config gives a table or one clean error; a table's totals behave as they must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.models.huggingface import build, read_config
from raysim.models.table import Model

CONFIGS = sorted((Path(__file__).parents[1] / "data" / "hf_configs").glob("*.json"))
VALUES = {p.stem: json.loads(p.read_text()) for p in CONFIGS}

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)


def keys(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [(*path, k) for k in values]
    for k, v in values.items():
        if k in ("text_config", "vision_config", "attn_config"):
            found += keys(v, (*path, k))
    return found


def attempt(values: dict[str, Any], seq_len: int | None) -> tuple[Model | None, list[str]]:
    """The table, or the lines a user would read; anything else but ScenarioError is a bug."""
    try:
        return build(values, seq_len=seq_len), []
    except ScenarioError as error:
        return None, [str(p) for p in error.problems]


@settings(max_examples=300)
@given(data=st.data())
def test_a_spoilt_config_gives_a_table_or_a_clean_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    values = json.loads(json.dumps(VALUES[name]))
    for path in data.draw(st.lists(st.sampled_from(keys(values)), min_size=1, max_size=3)):
        target = values
        for part in path[:-1]:
            if not isinstance(target.get(part), dict):
                break
            target = target[part]
        else:
            if data.draw(st.booleans()):
                target[path[-1]] = data.draw(odd)
            else:
                target.pop(path[-1], None)
    model, lines = attempt(values, seq_len=data.draw(st.sampled_from([None, 32])))
    if model is None:
        assert lines
        assert all(line.strip() and "\n" not in line for line in lines)
    else:
        assert model.num_parameters > 0
        assert model.flops > 0


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(data: st.DataObject, tmp_path_factory: Any) -> None:
    text = CONFIGS[data.draw(st.integers(0, len(CONFIGS) - 1))].read_text()
    cut = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(st.text(max_size=3))
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(text[:cut] + junk + text[cut + data.draw(st.integers(0, 9)) :])
    try:
        values = read_config(path)
    except ScenarioError as error:
        refused = error
    else:
        model, lines = attempt(values, seq_len=16)  # type: ignore[arg-type]
        assert (model is None) == bool(lines)
        return
    assert str(refused).startswith(str(path))


def totals(model: Model) -> tuple[float, float, float]:
    operators = [o for x in model.layers for o in x.body.operators]
    saved = sum(s.numel for x in model.layers for s in x.body.saved().values())
    return sum(o.moved for o in operators), sum(o.output for o in operators), saved


@pytest.mark.parametrize("name", sorted(VALUES))
def test_longer_sequences_cost_at_least_in_proportion(name: str) -> None:
    if VALUES[name]["model_type"] == "vit":
        pytest.skip("the image sets the length")
    short, long = (
        build(VALUES[name], seq_len=s, attention="eager") for s in (256, 512)
    )  # whole chunks
    assert long.flops >= 2 * short.flops
    # A few tensors of first-token heads do not grow; score matrices grow by four.
    assert all(2 * a * 0.99 <= b <= 4 * a for a, b in zip(totals(short), totals(long), strict=True))


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_table_is_well_formed(name: str) -> None:
    model = build(VALUES[name], seq_len=None if name.startswith("vit") else 64)
    names = [n for n, _ in model.parameters()]
    assert len(names) == len(set(names))
    full = dict(model.parameters())
    for n, p in model.parameters():
        assert not n.startswith(".")
        assert ".." not in n
        assert p.tied_to is None or full[p.tied_to].shape == p.shape
        assert p.shard is None or 0 <= p.shard < len(p.shape)
    for layer in model.layers:
        sizes: dict[str, tuple[float, str]] = {}
        for operator in layer.body.operators:
            assert min(operator.flops, operator.moved, operator.output, operator.kernels) >= 0
            assert operator.moved_backward is not None
            assert operator.moved_backward >= 0
            if operator.gemm and operator.kind == "gemm":
                g = operator.gemm
                assert operator.flops == 2 * g.rows * g.n * g.k
            if operator.split in ("column", "row") and operator.kind == "gemm":
                assert operator.saves, operator.name
            for s in operator.saves:
                known = sizes.setdefault(s.name, (s.numel, s.dtype))
                assert known == (s.numel, s.dtype) or 0 in (known[0], s.numel), s.name


@pytest.mark.parametrize("name", sorted(VALUES))
def test_tensor_parallel_keys_name_their_values(name: str) -> None:
    model = build(VALUES[name], seq_len=None if name.startswith("vit") else 64)
    assert model.divisible
    assert all(value >= 1 for _, value in model.divisible)
    for degree in (2, 4):
        if all(value % degree == 0 for _, value in model.divisible):
            for n, p in model.parameters():
                size = p.shape[p.shard] if p.shard is not None else 0
                assert size % degree == 0 or size == model.vocab_size, n
