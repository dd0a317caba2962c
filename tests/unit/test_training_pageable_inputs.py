"""Batches in pageable memory: when they are copied, and when the host goes on."""

from __future__ import annotations

import pytest

from raysim.perf.host import STAGED_BYTES
from raysim.training.compiler.feed import Feed
from raysim.training.program import COMPUTE
from tests.training_parts import plan, programs


@pytest.mark.parametrize(
    ("feed", "staged"),
    [
        (Feed(copy_bytes=STAGED_BYTES + 1, pageable=True), True),
        (Feed(copy_bytes=STAGED_BYTES, pageable=True), False),
        (Feed(copy_bytes=STAGED_BYTES + 1), False),
    ],
)
def test_the_host_waits_for_large_pageable_ones_alone(feed: Feed, staged: bool) -> None:
    (program,) = programs(plan(stage=1), feed=feed)
    ops = program.ops
    copies = [i for i, op in enumerate(ops) if op.name == "inputs to GPU"]
    assert len(copies) > 1
    for at in copies:
        assert (ops[at + 1].name == "pageable inputs") is staged
        assert (ops[at - 1].name == "before pageable inputs") is staged
    if staged:  # the second micro-batch waits for what the first has the GPU do
        waits = program.waits(copies[1] - 1)
        assert [ops[i].stream for i in waits] == [COMPUTE]
