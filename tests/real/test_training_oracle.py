"""The training tower's arithmetic against the functions of the real DeepSpeed package."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.real
pytest.importorskip("deepspeed")

from deepspeed.runtime import utils  # noqa: E402
from deepspeed.runtime.pipe import schedule as real_schedule  # noqa: E402
from deepspeed.runtime.zero import stage3, stage_1_and_2  # noqa: E402

from raysim.training.memory import estimators  # noqa: E402
from raysim.training.pipeline.partition import partition_balanced, partition_uniform  # noqa: E402
from raysim.training.pipeline.schedule import (  # noqa: E402
    inference_schedule,
    num_pipe_buffers,
    train_schedule,
)
from raysim.training.program import Kind  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from tests.training_parts import llama, plan, programs  # noqa: E402


@given(items=st.integers(1, 300), parts=st.integers(1, 64))
def test_partition_uniform(items: int, parts: int) -> None:
    assert partition_uniform(items, parts) == utils.partition_uniform(items, parts)


WEIGHTS = st.one_of(
    st.integers(0, 10**9),
    st.sampled_from([0, 1, 12_596_224, 51_463_168]),  # real layers repeat
    # DeepSpeed sums weights one by one, raysim subtracts prefix sums: exact for these.
    st.integers(0, 4096).map(lambda n: n / 8),
)


@settings(max_examples=60)
@given(weights=st.lists(WEIGHTS, min_size=1, max_size=24), parts=st.integers(1, 8))
def test_partition_balanced(weights: list[float], parts: int) -> None:
    assert partition_balanced(weights, parts) == utils.partition_balanced(weights, parts)


@given(stages=st.integers(1, 12), micro_batches=st.integers(1, 24), data=st.data())
def test_train_schedule(stages: int, micro_batches: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    real = real_schedule.TrainSchedule(micro_batches, stages, stage)
    buffers = num_pipe_buffers(stage, stages, micro_batches)
    assert buffers == real.num_pipe_buffers()
    ours = [
        [(i.do.value, None if i.micro_batch is None else i.micro_batch % buffers) for i in step]
        for step in train_schedule(stage, stages, micro_batches)
    ]
    theirs = [[(c.name, c.kwargs.get("buffer_id")) for c in step] for step in real.steps()]
    assert ours == theirs


@pytest.mark.parametrize("stages", range(2, 9))
def test_every_train_schedule_of_up_to_32_micro_batches(stages: int) -> None:
    for micro_batches in range(1, 33):
        for stage in range(stages):
            real = real_schedule.TrainSchedule(micro_batches, stages, stage)
            ours = [[i.do.value for i in s] for s in train_schedule(stage, stages, micro_batches)]
            assert ours == [[c.name for c in step] for step in real.steps()]


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_inference_schedule_of_up_to_32_micro_batches(stages: int) -> None:
    for micro_batches in range(1, 33):
        for stage in range(stages):
            real = real_schedule.InferenceSchedule(micro_batches, stages, stage)
            ours = inference_schedule(stage, stages, micro_batches)
            assert [[i.do.value for i in s] for s in ours] == [
                [c.name for c in step] for step in real.steps()
            ]


@pytest.mark.parametrize("stages", range(2, 9))
def test_evaluation_sends_and_receives_in_the_inference_schedules_order(stages: int) -> None:
    names = {"SendActivation": Kind.SEND, "RecvActivation": Kind.RECV}
    for batches in (1, 2, 7, 32):
        p = plan(llama(layers=8), mesh=Mesh(pp=stages))
        for program in programs(p, steps=batches, forward_only=True):
            real = real_schedule.InferenceSchedule(batches, stages, program.rank)
            theirs = [names[c.name] for s in real.steps() for c in s if c.name in names]
            assert [op.kind for op in program.ops if op.call is not None] == theirs
            assert len(program.step_ends) == batches


CLUSTER: dict[str, Any] = {
    "num_gpus_per_node": st.integers(1, 16),
    "num_nodes": st.integers(1, 512),
    "additional_buffer_factor": st.sampled_from([1.0, 1.5, 2.0]),
}


@given(params=st.integers(1, 10**12), offload=st.booleans(), cluster=st.fixed_dictionaries(CLUSTER))
def test_zero2_estimator(params: int, offload: bool, cluster: dict[str, Any]) -> None:
    ours = estimators.estimate_zero2_model_states_mem_needs(params, cpu_offload=offload, **cluster)
    real = stage_1_and_2.estimate_zero2_model_states_mem_needs
    assert tuple(ours) == real(params, cpu_offload=offload, **cluster)


@given(
    params=st.integers(1, 10**12),
    largest=st.integers(1, 10**10),
    flags=st.fixed_dictionaries(
        {k: st.booleans() for k in ("cpu_offload", "cpu_offload_params", "zero_init")}
    ),
    cluster=st.fixed_dictionaries(CLUSTER),
)
def test_zero3_estimator(
    params: int, largest: int, flags: dict[str, bool], cluster: dict[str, Any]
) -> None:
    """To the byte on the GPU; on the host, to the last bit of a float product."""
    ours = estimators.estimate_zero3_model_states_mem_needs(params, largest, **flags, **cluster)
    real = stage3.estimate_zero3_model_states_mem_needs(params, largest, **flags, **cluster)
    cpu_bytes, gpu_bytes, _ = real
    assert ours.gpu_bytes == gpu_bytes
    assert ours.cpu_bytes == pytest.approx(cpu_bytes, rel=1e-15, abs=1)
