"""SuperOffload: who steps what when, and on whose cores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.perf.host import HostPool, cpu_adam_seconds, host_pass_seconds
from raysim.training.executor import Timeline
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.parallel import Mesh
from raysim.units import to_ns
from tests.training_parts import cluster, llama, plan, play

MODEL = llama(layers=8, hidden=1024)
CLIPPED = {"gradient_clipping": 1.0}
RANKS = 8
SUB_GROUP = 6_000_000


def step(*, apart: bool, gradient_clipping: float = 0.0) -> Timeline:
    offload = OffloadOptimizer(device="cpu", super_offload=apart)
    zero = {"offload_optimizer": offload, "sub_group_size": SUB_GROUP, "reduce_bucket_size": 10**6}
    asked: dict[str, Any] = {"stage": 3, "zero": zero, "gradient_clipping": gradient_clipping}
    (line,) = play(plan(MODEL, mesh=Mesh(dp=RANKS), **asked), cluster(1)).timelines
    return line


def named(line: Timeline, name: str) -> list[tuple[int, int]]:
    """Of the first step: when each begins and ends."""
    ops = line.program.ops[: line.program.step_ends[0]]
    spans = zip(ops, line.start_ns, line.end_ns, strict=False)
    return [(begin, end) for op, begin, end in spans if op.name == name]


def last_backward_ns(line: Timeline) -> int:
    ops = line.program.ops[: line.program.step_ends[0]]
    return max(e for op, e in zip(ops, line.end_ns, strict=False) if op.category == "backward")


def test_without_clipping_sub_groups_step_during_backward() -> None:
    line = step(apart=True)
    spans = named(line, "DeepSpeedCPUAdam")
    assert len(spans) > 2
    assert spans[0][1] < last_backward_ns(line)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    begun = min(begin for begin, _ in named(line, "unscale on CPU"))
    assert begun >= spans[-1][1]


@pytest.mark.parametrize("options", [{"apart": True, **CLIPPED}, {"apart": False}])
def test_else_they_step_behind_it(options: dict[str, Any]) -> None:
    line = step(**options)
    assert named(line, "DeepSpeedCPUAdam")[0][0] >= last_backward_ns(line)


def test_adam_has_its_share_of_the_cores_and_copies_first() -> None:
    """Four fifths of the node's, over its ranks; three passes over main memory become five."""
    line = step(apart=True, **CLIPPED)
    cpu = catalog.node("hgx-h100-8").cpu
    pool = HostPool(threads=int(0.8 * cpu.cores / RANKS))
    numel = MODEL.num_parameters / RANKS
    adam = sum(end - begin for begin, end in named(line, "DeepSpeedCPUAdam"))
    copies = sum(end - begin for begin, end in named(line, "copy gradients for Adam"))
    whole_s = cpu_adam_seconds(numel, cpu, RANKS, pool, low_precision_copy=True)
    assert adam == pytest.approx(to_ns(whole_s), rel=1e-3)
    assert copies == pytest.approx(to_ns(host_pass_seconds(8 * numel, cpu, RANKS, pool)), rel=1e-3)


def test_gradients_go_to_shared_memory_which_is_not_pinned() -> None:
    def copied_ns(*, apart: bool) -> int:
        return sum(end - begin for begin, end in named(step(apart=apart), "gradients to host"))

    assert copied_ns(apart=True) > 1.5 * copied_ns(apart=False)
