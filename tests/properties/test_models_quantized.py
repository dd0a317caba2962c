"""Whatever the model: fp8 changes how products run and what they keep, nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.perf.compute import ComputeModel
from raysim.training.layers.pricing import Pricer
from raysim.training.layers.sharding import Sharding
from raysim.training.settings.fp8 import RECIPES, Fp8Settings, quantized_model

CONFIGS = sorted((Path(__file__).parents[1] / "data" / "hf_configs").glob("*.json"))
GPU = ComputeModel(catalog.gpu("B200"))
SETTINGS = [
    Fp8Settings(library=library, recipe=recipe, linears="all", classes=())  # type: ignore[arg-type]
    for library, recipes in RECIPES.items()
    for recipe in recipes
]


def model_of(path: Path) -> Model:
    try:
        return build(json.loads(path.read_text()), seq_len=128)
    except ScenarioError:  # no choice of length: images
        return build(json.loads(path.read_text()))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_products_stay_what_they_are(path: Path) -> None:
    own = model_of(path)
    for settings in SETTINGS:
        made = quantized_model(own, settings, "blackwell")
        assert made.flops == own.flops
        assert made.num_parameters == own.num_parameters
        assert [p.name for _, p in made.parameters()] == [p.name for _, p in own.parameters()]
        quantised = {p.name for _, p in made.parameters() if p.fp8}
        assert quantised or all(
            not o.gemm or o.gemm.n % 16 or o.gemm.k % 16
            for layer in own.layers
            for o in layer.body.operators
        )
        for layer, before in zip(made.layers, own.layers, strict=True):
            products = [o for o in layer.body.operators if o.gemm is not None]
            plain = [o for o in before.body.operators if o.gemm is not None]
            for o, old in zip(products, plain, strict=True):
                assert (o.gemm, o.output, o.split) == (old.gemm, old.output, old.split)
                if o.fp8 is not None:
                    assert o.fp8.source == old.saves[0].name
            if settings.library == "torchao":
                assert layer.body.saved() == before.body.saved()


@pytest.mark.parametrize("path", CONFIGS[::6], ids=lambda p: p.stem)
def test_every_piece_has_a_price(path: Path) -> None:
    own = model_of(path)
    for settings in SETTINGS[::2]:
        for sharding in (Sharding(), Sharding(tp=2, sequence_parallel=True, ep=1)):
            made = quantized_model(own, settings, "blackwell", gathered=sharding.tp)
            pricer = Pricer(GPU, batch=2, dtype="bf16", sharding=sharding, cut="collective")
            for layer in made.layers:
                for unit in pricer.layer(layer):
                    assert unit.forward_s >= 0
                    assert unit.backward_s >= unit.weights.seconds >= 0
                    assert unit.saved_bytes >= unit.weights.input_bytes >= 0
