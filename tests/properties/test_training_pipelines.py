"""Any pipeline that its schedule accepts plays to its end and gives back what it took."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raysim.models.table import Model
from raysim.training.breakdown import step_breakdown
from raysim.training.compiler.compile import RankCompiler
from raysim.training.pipeline.pipelines import KINDS, Pipeline, misfits
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, emitted, llama, plan, play

PASSING = {"activation", "logits", "temporary", "communication", "input"}
"""What nothing may hold between steps."""


@cache
def model(blocks: int) -> Model:
    return llama(layers=blocks, hidden=64, vocab=256, seq_len=32)


@st.composite
def pipelined(draw: st.DrawFn) -> TrainingPlan:
    name = draw(st.sampled_from(sorted(KINDS)))
    ranks = draw(st.integers(2, 5))
    rounds, rest = draw(st.integers(1, 4)), draw(st.sampled_from([0, 0, 1]))
    options: dict[str, Any] = {}
    if KINDS[name].chunks is None:
        options["virtual_stages"] = draw(st.integers(2, 3))
    if name == "interleaved":
        options["overlap_p2p_comm"] = draw(st.booleans())
    cut = PipelineSettings(
        stages=ranks, schedule=name, partition_method="blocks",
        pipe_partitioned=draw(st.booleans()), **options,
    )  # fmt: skip
    micro_batches = ranks * rounds + rest
    assume(not list(misfits(cut, ranks, micro_batches)))
    depth = Pipeline.of(cut, ranks, micro_batches).layout.depth
    return plan(
        model(depth),
        engine="deepspeed" if name == "1f1b" else "ddp",
        mesh=Mesh(pp=ranks, dp=draw(st.integers(1, 2)), tp=draw(st.integers(1, 2))),
        micro_batch=1,
        gradient_accumulation_steps=micro_batches,
        pipeline=cut,
        activation_checkpointing=draw(st.sampled_from(["none", "full"])),
        gradient_clipping=draw(st.sampled_from([0.0, 1.0])),
    )


@settings(max_examples=25, deadline=None)
@given(p=pipelined(), steps=st.integers(1, 2), exact=st.booleans())
def test_any_pipeline_plays_to_its_end(p: TrainingPlan, steps: int, exact: bool) -> None:
    outcome = play(p, cluster(3), steps=steps, exact=exact)
    # DeepSpeed's engine keeps its receive buffers.
    kept = {"input"} if p.pipeline.schedule == "1f1b" and p.mesh.pp > 1 else set()
    for line in outcome.timelines:
        assert not (PASSING - kept) & set(line.program.step_held[-1])
        found = step_breakdown(line, steps - 1)
        assert sum(found.parts_ns.values()) == found.step_ns
        for i in range(len(line.program.ops)):
            assert all(line.end_ns[w] <= line.end_ns[i] for w in line.program.waits(i))
    assert play(p, cluster(3), steps=3, forward_only=True).steady_step_ns > 0
    assert outcome.steady_step_ns >= max(
        step_breakdown(x, steps - 1).parts_ns["compute"] for x in outcome.timelines
    )


@settings(max_examples=10, deadline=None)
@given(pipelined())
def test_folding_changes_nothing(p: TrainingPlan) -> None:
    assume(p.mesh.world <= 8)
    folded, exact = (play(p, cluster(1), exact=e) for e in (False, True))
    assert abs(folded.steady_step_ns - exact.steady_step_ns) <= 0.002 * exact.steady_step_ns
    assert folded.fullest.peak_bytes == exact.fullest.peak_bytes


@settings(max_examples=25, deadline=None)
@given(p=pipelined(), steps=st.integers(1, 3), megatron=st.booleans())
def test_passes_issued_again_are_those_compiled_anew(
    p: TrainingPlan, steps: int, megatron: bool
) -> None:
    if megatron and p.pipeline.schedule == "megatron_1f1b":
        p = replace(p, engine="megatron", megatron=MegatronSettings(overlap_grad_reduce=True))
    again = emitted(p, steps)
    with patch.object(RankCompiler, "_pass", lambda self, do, emit: emit()):
        assert emitted(p, steps) == again
