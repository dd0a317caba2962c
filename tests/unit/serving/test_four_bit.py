"""Experts of four bits: how large they are when vLLM has loaded them, and Marlin's blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware import catalog
from raysim.hardware.specs import GpuSpec
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import read_decoder
from raysim.serving.four_bit import MARLIN, MARLIN_2025, marlin_rows, padding
from raysim.serving.settings import EngineSettings
from raysim.serving.timing import IterationTimes
from raysim.validate.serving import MODELS

H100, A100 = catalog.node("hgx-h100-8").gpu, catalog.node("dgx-a100-80-8").gpu
assert H100 is not None
assert A100 is not None


@pytest.mark.parametrize(
    ("name", "gpu", "marlin", "logged"),
    [
        ("gpt-oss-120b", H100, MARLIN_2025, 65.97),  # vLLM 0.10.1, its issue 23278
        ("gpt-oss-120b", H100, MARLIN, 64.38),  # 0.14.1 with Triton's kernels, issue 33155
        ("gpt-oss-20b", A100, MARLIN, 13.72),  # 0.19
    ],
)
def test_weights_are_as_large_as_vllm_logs_them(
    name: str, gpu: GpuSpec, marlin: tuple[str, ...], logged: float
) -> None:
    settings = EngineSettings().for_gpu(gpu)
    capacity = capacity_of(read_decoder(MODELS[name]), gpu, settings, marlin)
    assert capacity.weights_bytes / 2**30 == pytest.approx(logged, rel=0.006)


def test_only_mxfp4_is_padded() -> None:
    decoder = read_decoder(MODELS["gpt-oss-20b"])
    block = decoder.blocks[0]
    assert padding(decoder, block, A100, 1, MARLIN) == pytest.approx(3072 / 2880 * 2944 / 2880)
    assert padding(replace(decoder, expert_bytes=2.0), block, A100, 1, MARLIN) == 1.0
    assert padding(decoder, replace(block, experts=0), A100, 1, MARLIN) == 1.0


@given(st.floats(0.1, 20_000.0), st.sampled_from([8, 32, 128]))
def test_blocks_hold_all_rows_and_waste_at_most_one_block_per_expert(
    chosen: float, experts: int
) -> None:
    rows = marlin_rows(chosen, experts)
    reached = experts * (1.0 - math.exp(-chosen / experts))
    assert chosen * (1.0 - 1e-6) <= rows <= chosen + 64 * reached * (1.0 + 1e-6)


@pytest.mark.parametrize(("experts", "size"), [(128, 64), (32, 64), (2048, 8)])
def test_blocks_are_those_of_rows_drawn_by_chance(experts: int, size: int) -> None:
    drawn = np.random.default_rng(1).multinomial(8192, [1 / experts] * experts, size=400)
    held = (np.ceil(drawn / size) * size).sum(axis=1).mean()
    assert marlin_rows(8192, experts) == pytest.approx(held, rel=0.01)


def test_a_prompt_of_experts_in_part_filled_blocks_takes_longer_per_row() -> None:
    few, many = (
        IterationTimes(read_decoder(MODELS["gpt-oss-120b"]), A100).tokens_s(n) / n
        for n in (2048, 8192)
    )
    assert few > 1.15 * many
