"""Pipeline partitions: vectors executed from DeepSpeed 0.19's own functions, and refusals."""

from __future__ import annotations

import pytest

from raysim.errors import ScenarioError
from raysim.models import sequential
from raysim.models.table import Body, Layer, Model, Module, Parameter
from raysim.training.pipeline.partition import (
    layer_weights,
    partition_balanced,
    partition_layers,
    partition_uniform,
)


@pytest.mark.parametrize(
    ("items", "parts", "bounds"),
    [
        (10, 4, [0, 3, 6, 8, 10]),
        (7, 3, [0, 3, 5, 7]),
        (26, 4, [0, 7, 14, 20, 26]),
        (3, 4, [0, 1, 2, 3, 3]),
    ],
)
def test_uniform(items: int, parts: int, bounds: list[int]) -> None:
    assert partition_uniform(items, parts) == bounds


EMBEDDING, BLOCK = 51.5, 12.6
"""Millions of parameters of GPT-2 medium's ends and blocks."""


@pytest.mark.parametrize(
    ("weights", "parts", "bounds"),
    [
        ([0, 0] + [1] * 24 + [0, 0], 4, [0, 8, 14, 20, 28]),
        # BigScience 52B: its log prints these bounds
        ([0] * 3 + [1] * 64 + [0] * 4, 16, [0, *range(7, 64, 4), 71]),
        ([1] * 10, 4, [0, 3, 6, 8, 10]),
        (
            [0, 0] + [1] * 78 + [0] * 3,
            12,
            [0, 9, 16, 23, 30, 37, 44, 50, 56, 62, 68, 74, 83],
        ),
        ([EMBEDDING] + [BLOCK] * 24 + [EMBEDDING], 4, [0, 5, 13, 21, 26]),
        ([1, 1, 1, 4, 1, 1, 1, 1], 3, [0, 3, 4, 8]),
    ],
)
def test_balanced(weights: list[float], parts: int, bounds: list[int]) -> None:
    assert partition_balanced(weights, parts) == bounds


def stack(*classes: str) -> Model:
    """Layers of one parameter tensor each, of 1, 2, 3... elements."""
    layers = []
    for i, cls in enumerate(classes):
        weight = Parameter(name="weight", shape=(i + 1,))
        module = Module(name="", cls=cls, parameters=(weight,))
        body = Body(modules=(module,))
        layers.append(Layer(name=str(i), kind="block", cls=cls, body=body, output=1.0))
    return Model(name="m", model_type="m", architecture="M", layers=tuple(layers), seq_len=1)


def test_weights_are_trainable_parameters_tied_ones_at_each_occurrence() -> None:
    frozen = Parameter(name="frozen", shape=(100,), trainable=False)
    tied = Parameter(name="tied", shape=(10,), tied_to="0.weight")
    body = Body(modules=(Module(name="", cls="Linear", parameters=(frozen, tied)),))
    layer = Layer(name="1", kind="head", cls="Linear", body=body, output=1.0)
    assert layer_weights((*stack("Linear").layers, layer), "parameters") == [1.0, 10.0]


def test_type_matches_part_of_the_class_name_and_ignores_case() -> None:
    layers = stack("EmbeddingPipe", "ParallelTransformerLayerPipe", "GPTBlock").layers
    assert layer_weights(layers, "type:transformer|block") == [0.0, 1.0, 1.0]


def test_methods_are_read_in_any_case() -> None:
    layers = stack(*["Embedding"], *["Block"] * 6, *["Head"]).layers
    assert partition_layers(layers, 2, "UNIFORM") == [0, 4, 8]
    assert partition_layers(layers, 2, "Type:BLOCK") == [0, 4, 8]
    # weights 1..8 sum to 36: 21 + 15 differs least
    assert partition_layers(layers, 2, "Parameters") == [0, 6, 8]


def test_an_empty_stage_is_refused() -> None:
    layers = sequential.build([(8, 8), "relu", (8, 4)]).layers
    with pytest.raises(ScenarioError, match="3 layers over 4 stages by 'uniform' leave one empty"):
        partition_layers(layers, 4, "uniform")


@pytest.mark.parametrize("method", ["profile", "best", ""])
def test_other_methods_are_refused(method: str) -> None:
    with pytest.raises(ScenarioError, match="uniform, parameters, type:regex"):
        partition_layers(stack("A", "B").layers, 2, method)
