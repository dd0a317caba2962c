"""InternEvo's optimizer: who owns what, what is sent when, and for what the host waits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.training.engines.internevo import STREAM, owned_numel
from raysim.training.plan import InternEvoSettings, TrainingPlan
from raysim.training.program import Call, Kind, Op, Program
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, llama, plan, play, programs

MODEL = llama(layers=4, hidden=256, vocab=1024)
SIZES = [p.numel for _, p in MODEL.parameters()]


def intern(zero1: int = 8, bucket: int = 2**20, dp: int = 16, **options: Any) -> TrainingPlan:
    settings = InternEvoSettings(zero1=zero1, reduce_bucket_size=bucket)
    return plan(
        MODEL, engine="internevo", internevo=settings, mesh=Mesh(dp=dp),
        optimizer=Optimizer(fused=False, foreach=False), **options,
    )  # fmt: skip


def compiled(**options: Any) -> Program:
    (program,) = programs(intern(**options), cluster(2))
    return program


def calls(program: Program, op: str, least: int = 9) -> list[Call]:
    """Without scalars."""
    return [c for c in program.calls() if c.op == op and c.size_bytes >= least]


def test_each_tensor_goes_to_whoever_has_the_fewest_elements() -> None:
    assert owned_numel([1, 5, 4, 3, 3], 2) == [8, 8]  # 5 | 4, then 3 to the second, 3, 1
    assert owned_numel([6, 2, 1], 4) == [6, 2, 1, 0]


def test_gradients_are_summed_over_all_ranks_in_buckets_of_the_last_micro_batch() -> None:
    sums = calls(compiled(gradient_accumulation_steps=3), "all_reduce")
    assert {c.group for c in sums} == {"dp"}
    assert sum(c.size_bytes for c in sums) == 2 * sum(SIZES)
    assert all(c.size_bytes <= 2 * 2**20 for c in sums)
    assert len(sums) > 2


def test_before_a_bucket_the_host_waits_for_the_whole_gpu() -> None:
    ops = compiled().ops
    for i, op in enumerate(ops):
        if op.name == "flatten gradients":
            wait = _before(ops, i, Kind.SYNC)
            waited = [ops[wait - back] for back in ops[wait].back]
            assert {"compute"} <= {w.stream for w in waited}
            earlier = any(o.stream == STREAM for o in ops[:wait])
            assert (STREAM in {w.stream for w in waited}) == earlier


def _before(ops: list[Op], i: int, kind: Kind) -> int:
    return next(k for k in range(i, -1, -1) if ops[k].kind == kind)


@pytest.mark.parametrize(("zero1", "group", "owners"), [(8, "dp_shard:8", 8), (-1, "dp", 16)])
def test_owners_send_their_weights_one_after_the_other(zero1: int, group: str, owners: int) -> None:
    sent = calls(compiled(zero1=zero1), "broadcast")
    assert [c.size_bytes for c in sent] == [2 * n for n in owned_numel(SIZES, owners)]
    assert {c.group for c in sent} == {group}


def test_ranks_without_a_tensor_send_nothing() -> None:
    where = cluster(8)
    (program,) = programs(intern(zero1=-1, dp=64), where)
    assert len(calls(program, "broadcast")) == len(SIZES) < 64


def test_the_fullest_owner_is_who_all_wait_for() -> None:
    """With more ranks than tensors nobody steps less than an embedding."""
    (program,) = programs(intern(zero1=-1, dp=64), cluster(8))
    states = next(e for e in program.initial if e.label == "optimizer states")
    assert states.delta_bytes == 12 * max(SIZES)


def test_weights_are_sent_after_the_step_and_waited_for() -> None:
    (line,) = play(intern(), cluster(2)).timelines
    ops, begin = line.program.ops, line.program.step_ends[0]
    sent = [i for i in range(begin, len(ops)) if (c := ops[i].call) and c.op == "broadcast"]
    stepped = next(i for i in range(begin, len(ops)) if ops[i].name == "AdamW")
    assert line.start_ns[sent[0]] >= line.end_ns[stepped]
    assert all(line.start_ns[b] >= line.end_ns[a] for a, b in pairwise(sent))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"zero1": 3}, "zero1 3 does not divide 16"),
     ({"mesh": Mesh(dp=8, pp=2)}, "pipelines are not simulated")],
)  # fmt: skip
def test_what_is_not_simulated_is_said(options: dict[str, Any], words: str) -> None:
    zero1 = options.pop("zero1", 8)
    p = intern(zero1) if not options else plan(MODEL, engine="internevo", **options)
    with pytest.raises(ScenarioError, match=words):
        programs(p, cluster(2))
