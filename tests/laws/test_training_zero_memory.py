"""ZeRO's memory table: 2 + 2 + 12 bytes per parameter, sharded stage by stage.

Closed forms (Rajbhandari et al. 2020, table 1), P parameters, N ranks, K = 12 for mixed-precision
Adam: 4P + KP/N, 2P + (2 + K)P/N, (4 + K)P/N for stages 1, 2, 3; (4 + K)P without ZeRO.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.training.memory.estimators import zero_paper_bytes
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from tests.deepspeed_reference import DATA, gpt
from tests.training_parts import cluster, plan, programs

GB = 1_000_000_000
ROWS = [
    row
    for row in json.loads((DATA / "published" / "zero_memory.json").read_text())["rows"]
    if row["id"].startswith("zero-paper")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_the_papers_table(row: dict[str, Any]) -> None:
    found = zero_paper_bytes(row["parameters"], row["gpus"], row["stage"])
    assert round(found / GB, 2) == row["gpu_gb"]


def test_the_papers_headline() -> None:
    """7.5 billion parameters on 64 GPUs: 120 GB become 31.4, 16.6 and 1.9."""
    sizes = [zero_paper_bytes(7.5e9, 64, stage) / GB for stage in range(4)]
    assert [float(f"{s:.3g}") for s in sizes] == [120.0, 31.4, 16.6, 1.88]


@given(
    params=st.integers(1, 10**12),
    ranks=st.integers(1, 4096),
    optimizer=st.sampled_from([4.0, 12.0]),
)
def test_every_stage_saves_and_one_rank_has_nothing_to_shard(
    params: int, ranks: int, optimizer: float
) -> None:
    sizes = [zero_paper_bytes(params, ranks, stage, optimizer) for stage in range(4)]
    slack = 1e-9 * sizes[0]  # rounding of large floats
    assert all(a >= b - slack for a, b in pairwise(sizes))
    assert sizes[3] == pytest.approx(sizes[0] / ranks)
    if ranks == 1:
        assert sizes == pytest.approx([sizes[0]] * 4)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_compiled_programs_hold_what_the_paper_says(stage: int, ranks: int) -> None:
    """Weights, gradients and states at the optimizer step; buckets and activations apart.

    The table's gradients live until the step; one temporary fp32 copy of the rank's own gradients
    is taken there, which the paper does not count.
    """
    model = gpt(hidden=64, layers=2, vocab=512, seq=32)
    p = plan(
        model,
        stage=stage,
        mesh=Mesh(dp=ranks),
        precision="bf16",
        optimizer=Optimizer(type="AdamW"),
        gradient_accumulation_steps=1,
        zero={"reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0},
    )
    program = programs(p, cluster(nodes=1))[0]
    held: dict[str, int] = {}
    most = 0
    for event in program.memory:
        held[event.category] = held.get(event.category, 0) + event.delta_bytes
        states = sum(held.get(c, 0) for c in ("parameter", "gradient", "optimizer_state"))
        most = max(most, states)
    expected = zero_paper_bytes(model.num_parameters, ranks, stage)
    # The largest gradient (the embedding's) is whole before it is reduced; shards are padded.
    largest = 2 * max(q.numel for _, q in model.parameters())
    assert expected <= most + 1
    assert most <= expected + 2 * largest + 16 * ranks * 40
