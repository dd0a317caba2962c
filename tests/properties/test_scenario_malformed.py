"""Whatever stands in a user's files: a scenario, or one-line problems with positions."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import hjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from raysim.errors import ScenarioError
from raysim.scenario.build import build_cluster, build_job
from raysim.scenario.load import load

BASE = Path(__file__).parents[1] / "data" / "malformed" / "base"
TEXTS = {path.name: path.read_text() for path in sorted(BASE.iterdir())}
DATA: dict[str, Any] = {
    name: hjson.loads(text) if name.endswith(".json") else YAML(typ="safe").load(text)
    for name, text in TEXTS.items()
}
DATA = json.loads(json.dumps(DATA))
RAY_UP_SCENARIO = """
cluster: {from: ray-up.yaml}
model: {from: config.json}
jobs: [{train: {deepspeed: ds_config.json, workers: 16, micro_batch: 1, steps: 1}}]
"""
RELAXED = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def answer(files: dict[str, str | bytes]) -> list[str]:
    """Problems of a folder, checked for form; empty when it is a scenario after all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scenario_text = RAY_UP_SCENARIO if "ray-up.yaml" in files else TEXTS["scenario.yaml"]
        for file, content in {**TEXTS, "scenario.yaml": scenario_text, **files}.items():
            data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            (folder / file).write_bytes(data)
        try:
            scenario = load(folder)
            build_cluster(scenario)
            build_job(scenario)
        except ScenarioError as error:
            return checked(error)
        assert all("\n" not in str(p) for p in (*scenario.notes, *scenario.warnings))
    return []


def checked(error: ScenarioError) -> list[str]:
    assert error.problems
    for problem in error.problems:
        line = str(problem)
        assert "\n" not in line
        assert "\r" not in line
        assert len(line) < 1000, line
        line.encode("utf-8")  # can be printed
        assert problem.where is not None, line
        assert problem.message
    return [str(p) for p in error.problems]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.integers(min_value=-3, max_value=9),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        [
            "auto",
            "1e400",
            "nan",
            ".inf",
            "8x400Gb/s",
            "-5GiB",
            "30min",
            "<= 3",
            "../..",
            "/",
            "\0",
            "%",
        ]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside nested data."""
    found = [path] if path else []
    if isinstance(data, (dict, list)):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, inner in items:
            found += places(inner, (*path, key))
    return found


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, str | bytes]:
    """One of the four files with one or two values replaced, keys dropped or misspelt."""
    name = draw(st.sampled_from(sorted(DATA)))
    data = copy.deepcopy(DATA[name])
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(data)))
        parent = data
        for step in path[:-1]:
            parent = parent[step]
        how = draw(st.sampled_from(["value", "value", "drop", "misspell"]))
        if how == "value" or isinstance(parent, list):
            parent[path[-1]] = draw(values)
        else:
            old = parent.pop(path[-1])
            if how == "misspell":
                parent[path[-1][:-1] + draw(st.text(max_size=2))] = old
    return {name: json.dumps(data)}


@settings(RELAXED, max_examples=250)
@given(damaged())
def test_damaged_files(files: dict[str, str | bytes]) -> None:
    answer(files)


@RELAXED
@given(st.sampled_from(sorted(TEXTS)), st.binary(max_size=200))
def test_random_bytes(name: str, content: bytes) -> None:
    answer({name: content})


@RELAXED
@given(
    st.sampled_from(sorted(TEXTS)), st.text(alphabet="{}[]:,-&*!|>'\"#%@` \n\tab1.", max_size=80)
)
def test_random_punctuation(name: str, content: str) -> None:
    answer({name: content})


@RELAXED
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_cut_and_doubled_text(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 40))
    piece = text[at : at + length]
    keep = data.draw(st.sampled_from(["", piece + piece, piece[::-1]]))
    answer({name: text[:at] + keep + text[at + length :]})


@RELAXED
@given(st.dictionaries(st.sampled_from([
    "train.workers", "train.micro_batch", "train.zero_stage", "cluster.gpu-worker.replicas", "seed",
    "train.deepspeed", "model.hidden_size", "train.tensor_parallel", "train.pipeline.stages",
    "jobs.0.train.steps", "jobs.7.x", "cluster", "a..b", "", "model.from", "train.auto.x",
    "train.deepspeed.bf16.enabled.x", "cluster.from.spec.workerGroupSpecs.0.replicas",
]), values, min_size=1, max_size=2))  # fmt: skip
def test_changes(changes: dict[str, Any]) -> None:
    scenario = load(BASE)
    try:
        changed = scenario.with_(changes)
        build_job(changed)
    except ScenarioError as error:
        checked(error)
