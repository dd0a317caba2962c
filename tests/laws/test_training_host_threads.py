"""How fast an optimizer in main memory is, by the threads that its ranks have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.hardware import catalog
from raysim.hardware.specs import CpuSpec
from raysim.measure.table import read_rows
from raysim.perf.host import (
    CPU_STREAM_SHARE,
    FRESH_BYTES_PER_S,
    FRESH_THREAD_BYTES_PER_S,
    UNBOUND_SHARE,
    HostPool,
    cpu_adam_seconds,
    fresh_pages_seconds,
    host_pass_seconds,
    threads_said,
)
from raysim.raylibs.train.host_threads import too_few_threads, with_all_cores
from raysim.training.program import CPU
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome
from raysim.units import GB, to_seconds
from raysim.workloads.whatif import faster
from tests.training_parts import cluster, llama, plan, play

ADAM_BYTES = 4 * (2 + 2 + 2 + 1)
"""p, m and v read and written, g read."""
MEASURED = Path(__file__).parents[2] / "validation/data/amd-epyc-2core/2026-11-25/host_memory.csv"
HOSTS = ("2x-xeon-8168", "2x-xeon-8480c", "2x-epyc-7742", "2x-xeon-e5-2698v4", "2x-grace")


def adam_s(cpu: CpuSpec, ranks: int, threads: int | None, *, bound: bool = False) -> float:
    pool = HostPool(threads=threads, bound=bound)
    return cpu_adam_seconds(1e9, cpu, ranks, pool, low_precision_copy=False)


@pytest.mark.parametrize("name", HOSTS)
def test_one_thread_does_what_its_core_streams(name: str) -> None:
    cpu = catalog.cpu(name)
    each_s = ADAM_BYTES * 1e9 / cpu.core_memory_bytes_per_s
    assert adam_s(cpu, 1, 1) == pytest.approx(each_s)
    assert adam_s(cpu, 1, 2) == pytest.approx(each_s / 2)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_more_threads_are_never_slower_and_stop_helping_at_the_memory_s_rate(
    name: str, ranks: int
) -> None:
    cpu = catalog.cpu(name)
    took = [adam_s(cpu, ranks, threads) for threads in (1, 2, 4, 8, 16, 64, 1000, None)]
    assert took == sorted(took, reverse=True)
    unbound_per_s = cpu.memory_bytes_per_s * CPU_STREAM_SHARE * UNBOUND_SHARE
    assert took[-1] == took[-2] == pytest.approx(ADAM_BYTES * 1e9 * ranks / unbound_per_s)
    assert adam_s(cpu, ranks, None, bound=True) == pytest.approx(took[-1] * UNBOUND_SHARE)


def test_threads_beyond_a_rank_s_share_of_the_cores_do_nothing() -> None:
    cpu = replace(catalog.cpu("2x-xeon-8168"), memory_bytes_per_s=1e15, flops_per_s=1e18)
    assert adam_s(cpu, 8, 6) == adam_s(cpu, 8, 48) < adam_s(cpu, 8, 5)
    passes = [host_pass_seconds(1e9, cpu, 8, HostPool(threads=n)) for n in (3, 6, 48)]
    assert passes == pytest.approx([1e9 / (n * cpu.core_memory_bytes_per_s) for n in (3, 6, 6)])


def test_deepspeeds_log_of_a_dgx_2_is_that_of_all_cores() -> None:
    """ZeRO-Offload's tutorial: a step of 1e10 parameters in 6.2 to 6.5 s, launched by deepspeed."""
    cpu = catalog.node("dgx-2-v100-16").cpu
    whole, one = (
        cpu_adam_seconds(1e10, cpu, 1, HostPool(threads=n), low_precision_copy=True)
        for n in (None, 1)
    )
    assert whole == pytest.approx(6.35, rel=0.1)
    assert one > 2.5 * whole


def test_new_pages_come_by_thread_up_to_what_the_kernel_provides() -> None:
    took = [fresh_pages_seconds(1e9, cores) for cores in (1.0, 2.0, 50.0)]
    each_s = 1e9 / FRESH_THREAD_BYTES_PER_S
    assert took == pytest.approx([each_s, each_s / 2, 1e9 / FRESH_BYTES_PER_S])


@pytest.mark.parametrize(
    ("text", "threads"), [("8", 8), ("4,2", 4), (" 3 ", 3), ("", None), ("0", None), ("all", None)]
)
def test_what_the_variable_says(text: str, threads: int | None) -> None:
    assert threads_said(text) == threads


# ---- as measured ---------------------------------------------------------------------------------


def rates() -> Mapping[tuple[int, str], float]:
    """Bytes per second by threads and quantity."""
    return {
        (int(r.parameters["threads"]), r.parameters["quantity"]): float(r.parameters["bytes"])
        / r.value
        for r in read_rows(MEASURED)
    }


def test_deepspeeds_adam_streams_as_an_update_in_place_does() -> None:
    found = rates()
    for threads in (1, 2):
        for adam in ("cpu_adam", "adamw_fused"):
            assert found[threads, adam] == pytest.approx(found[threads, "in_place"], rel=0.2)
        assert 0.5 < found[threads, "cast"] / found[threads, "in_place"] < 1


def test_the_measured_host_is_the_model_s_with_its_own_rates() -> None:
    """A core that streams nearly all that its memory gives: a second thread adds little."""
    found = rates()
    most_per_s = found[2, "in_place"]
    cpu = CpuSpec(
        name="epyc", sockets=1, cores=2, memory_bytes_per_s=most_per_s, flops_per_s=1e12,
        core_memory_bytes_per_s=found[1, "in_place"],
    )  # fmt: skip
    for threads in (1, 2):
        pool = HostPool(threads=threads, bound=True)
        seconds = cpu_adam_seconds(1e8, cpu, 1, pool, low_precision_copy=False, stream_share=1.0)
        assert ADAM_BYTES * 1e8 / seconds == pytest.approx(found[threads, "cpu_adam"], rel=0.2)


def test_a_thread_s_new_pages_are_the_difference_of_two_casts() -> None:
    rows = {
        (r.parameters["threads"], r.parameters["quantity"]): r.value for r in read_rows(MEASURED)
    }
    new_bytes = 2 * 1e8
    fresh_s = rows["1", "cast_to_new"] - rows["1", "cast"]
    assert new_bytes / fresh_s == pytest.approx(FRESH_THREAD_BYTES_PER_S, rel=0.05)
    fresh_s = rows["2", "cast_to_new"] - rows["2", "cast"]
    assert new_bytes / fresh_s == pytest.approx(2 * FRESH_THREAD_BYTES_PER_S, rel=0.25)


# ---- in a step -----------------------------------------------------------------------------------


def offloaded(pool: HostPool, *, stage: int = 2, ranks: int = 1) -> StepOutcome:
    return play(
        plan(
            llama(hidden=1024), stage=stage, mesh=Mesh(dp=ranks), host_pool=pool,
            zero={"offload_optimizer": OffloadOptimizer(device="cpu")},
        ),
        cluster(nodes=1),
    )  # fmt: skip


def on_host_s(step: StepOutcome) -> float:
    return to_seconds(sum(op.duration_ns for op in step.slowest.program.ops if op.stream == CPU))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_s_work_on_the_host_is_that_of_its_threads(stage: int) -> None:
    one, all_ = (offloaded(HostPool(threads=n), stage=stage) for n in (1, None))
    assert on_host_s(one) > 2 * on_host_s(all_)
    assert one.steady_step_ns > all_.steady_step_ns
    bound = offloaded(HostPool(bound=True), stage=stage)
    assert bound.steady_step_ns < all_.steady_step_ns


def test_fsdps_offloaded_optimizer_has_them_too() -> None:
    took = [
        play(
            plan(
                llama(hidden=1024), engine="fsdp", mesh=Mesh(dp=2),
                fsdp=FsdpSettings(cpu_offload=True), host_pool=HostPool(threads=n),
            ),
            cluster(nodes=1),
        ).steady_step_ns
        for n in (1, 2, None)
    ]  # fmt: skip
    assert took[0] > took[1] > took[2]


def test_few_threads_are_said_with_the_fix_and_tried_as_a_change() -> None:
    step = offloaded(HostPool(threads=1))
    cores = step.cluster.gpu_nodes[0].cpu.cores
    found = too_few_threads(step)
    assert found is not None
    assert found.code == "host-optimizer-with-few-threads"
    assert f"1 thread per rank, of {cores} cores" in found.cause
    assert f"OMP_NUM_THREADS={cores}" in found.fix
    effects = faster(
        step.plan, step.cluster, 80 * GB, step_s=to_seconds(step.steady_step_ns), peak_bytes=1
    )
    (more,) = (e for e in effects if e.change.change == f"omp_num_threads: {cores}")
    assert more.step_delta_frac is not None
    assert more.step_delta_frac < -0.1
    assert too_few_threads(play(more.change.plan, step.cluster)) is None


@pytest.mark.parametrize("pool", [HostPool(), HostPool(bound=True), HostPool(threads=200)])
def test_enough_threads_are_not_spoken_of(pool: HostPool) -> None:
    assert too_few_threads(offloaded(pool)) is None


def test_nor_are_threads_that_nothing_needs() -> None:
    """An optimizer on the GPU; eight ranks whose cores together reach what the memory gives."""
    idle = plan(llama(), stage=2, host_pool=HostPool(threads=1))
    assert with_all_cores(idle, cluster()) is None
    crowded = cluster(nodes=1)
    (group,) = crowded.groups
    slow = replace(group.node, cpu=replace(group.node.cpu, memory_bytes_per_s=100e9))
    p = replace(offloaded(HostPool(threads=1)).plan, mesh=Mesh(dp=8))
    step = play(p, replace(crowded, groups=(replace(group, node=slow),)))
    assert too_few_threads(step) is None
