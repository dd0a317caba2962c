"""Fused attention in fp32 on a GPU against kernels timed in training steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.hardware import catalog
from raysim.models.table import Attention, Operator
from raysim.perf.compute import ComputeModel

H100 = catalog.gpu("H100-SXM-80GB")
OPERATORS = Path("validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26/script_operators.json")
CAUSAL = {"gpt-fp32-b4": True, "gpt-tf32-b4": True, "bert-fp32-b32": False, "vit-fp32-b32": False}


def core(length: int, heads: int, dim: int, *, causal: bool) -> Operator:
    attention = Attention(
        q_len=length, kv_len=length, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim,
        causal=causal, implementation="sdpa",
    )  # fmt: skip
    return Operator(name="core", kind="attention", attention=attention)


@pytest.mark.parametrize("step", CAUSAL)
def test_measured_kernels(step: str) -> None:
    model = ComputeModel(H100, allow_tf32="tf32" in step)
    found = 0
    for name, shapes, calls, seconds in json.loads(OPERATORS.read_text())[step]:
        if "_efficient_attention" in name:
            sizes = json.loads(shapes)[0]
            op = core(*sizes[1:], causal=CAUSAL[step])
            one = model.operator_s(op, batch=sizes[0], dtype="fp32", backward="backward" in name)
            assert calls * one == pytest.approx(seconds, rel=0.15)
            found += 1
    assert found == 2


@pytest.mark.parametrize("backward", [False, True])
def test_its_products_do_not_heed_allow_tf32(backward: bool) -> None:
    took = {
        ComputeModel(H100, allow_tf32=allowed).operator_s(
            core(1024, 12, 64, causal=True), batch=4, dtype="fp32", backward=backward
        )
        for allowed in (False, True)
    }
    assert len(took) == 1
