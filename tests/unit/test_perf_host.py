"""What things cost the host: constants, their scaling by the CPU, CUDA graphs, ranks on the CPU."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from raysim.calibrate.direct_host import host_speed
from raysim.hardware import catalog
from raysim.hardware.specs import CpuRankSpec
from raysim.models.table import Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import TrainingConstants
from raysim.perf.cpu_rank import compute_model
from raysim.perf.host import (
    COPY_FIXED_S,
    FRESH_BYTES_PER_S,
    REFERENCE_SINGLE_THREAD,
    HostCosts,
    copy_seconds,
)
from raysim.perf.host_speed import host_costs
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.parallel import Mesh
from tests.training_parts import llama, plan, programs

A100 = catalog.gpu("A100-SXM-80GB")
XEON = Path(__file__).parents[2] / "validation/data/intel-xeon-2core/2026-11-22"
ROUND = HostCosts(operator_s=1.0, module_s=10.0, node_s=2.0, launch_s=0.5)
VIEW = Operator(name="view", kind="other", kernels=0, kernels_backward=0, dispatches=3)
PRODUCT = Operator(name="product", kind="gemm", kernels=1, kernels_backward=2, dispatches=4)


def test_forward_counts_operators_and_backward_nodes() -> None:
    assert ROUND.forward_s(4, 1) == 4.5
    assert ROUND.backward_s(5, 2) == 11.0
    assert ROUND.eager_s == 1.5


def test_a_view_costs_the_host_and_launches_nothing() -> None:
    model = ComputeModel(A100)
    assert model.host_s(VIEW) == pytest.approx(3 * model.host.operator_s)
    assert model.host_s(VIEW, backward=True) == pytest.approx(3 * model.host.node_s)
    both = 4 * model.host.node_s + 2 * model.host.launch_s
    assert model.host_s(PRODUCT, backward=True) == pytest.approx(both)


def test_operators_are_as_many_as_kernels_where_nobody_says() -> None:
    assert Operator(name="a", kind="other", kernels=7).dispatched == 7


def test_every_cost_halves_on_a_host_twice_as_fast() -> None:
    own, fast = HostCosts(), HostCosts().at_speed(2.0)
    for field in fields(HostCosts):
        assert getattr(fast, field.name) == getattr(own, field.name) / 2


def test_the_processor_decides_unless_a_profile_does() -> None:
    slow = catalog.cpu("2x-xeon-e5-2686v4")
    assert slow.single_thread < catalog.cpu("2x-xeon-8480c").single_thread
    by_cpu = host_costs(TrainingConstants(), slow)
    assert by_cpu.node_s == pytest.approx(
        HostCosts().node_s * REFERENCE_SINGLE_THREAD / slow.single_thread
    )
    assert host_costs(TrainingConstants(host_speed=1.0), slow) == HostCosts()
    assert host_costs(TrainingConstants()) == HostCosts()


def test_a_profile_s_constant_replaces_one() -> None:
    given = TrainingConstants(collective_s=1e-3, host_speed=2.0)
    assert host_costs(given).collective_s == 5e-4


def test_captured_layers_cost_nothing_but_hooks_and_collectives_do() -> None:
    model = ComputeModel(A100, cuda_graphs=True)
    assert model.host_s(PRODUCT) == model.host_s(PRODUCT, backward=True) == 0.0
    assert model.passes.module_s == model.passes.checkpoint_s == 0.0
    assert model.passes.collective_s == HostCosts().collective_s
    assert model.host == HostCosts()  # the optimizer runs eagerly


def test_a_scalar_for_the_gpu_is_a_copy_whatever_the_batch() -> None:
    zero = Operator(name="zero", kind="sync", kernels=0, kernels_backward=0)
    model = ComputeModel(A100)
    assert model.operator_s(zero, batch=4, dtype="fp16") == COPY_FIXED_S
    assert model.operator_s(zero, batch=4, dtype="fp16", backward=True) == 0.0


def test_a_rank_on_the_cpu_pays_per_kernel_alone() -> None:
    rank = catalog.node("cpu-ranks-2").gpu
    assert isinstance(rank, CpuRankSpec)
    model = compute_model(rank, TrainingConstants(host_speed=3.0), catalog.cpu("2x-epyc-7742"))
    assert model.host_s(VIEW) == 0.0
    assert model.host_s(PRODUCT, backward=True) == 2 * rank.dispatch_s
    assert model.host.eager_s == model.host.collective_s == rank.dispatch_s
    assert model.host.hook_s == HostCosts().hook_s
    assert "operator_s" not in model.provenance


@pytest.mark.parametrize("name", [f.name for f in fields(HostCosts)])
def test_profiles_know_every_cost_of_the_host(name: str) -> None:
    changed = replace(TrainingConstants(), **{name: 1.0})
    assert getattr(host_costs(changed), name) == 1.0


def test_the_measured_host_is_a_third_as_fast_as_the_reference() -> None:
    """And its layers agree: the constants are 6 % off in the mean (``PROVENANCE``)."""
    speed = host_speed(XEON)
    assert speed is not None
    assert speed.value == pytest.approx(1 / 3.45, rel=0.05)
    assert speed.error is not None
    assert speed.error < 0.2


def test_no_table_says_nothing(tmp_path: Path) -> None:
    assert host_speed(tmp_path) is None


def test_pageable_copies_are_as_fast_as_an_h100_s_and_as_a_v100_s() -> None:
    """Measured: 8.9 and 12.8 GB/s beside 54; the usual 6 GB/s of PCIe 3."""
    for name, least, most in (("H100-SXM-80GB", 8.9e9, 12.8e9), ("V100-SXM2-32GB", 5.5e9, 7e9)):
        gpu = catalog.gpu(name)
        seconds = copy_seconds(gpu, 1e9, "h2d", pinned=False, d2d_bytes_per_s=1.0)
        assert least < 1e9 / seconds < most


def test_offload_under_zero_3_casts_into_new_pages() -> None:
    """Which ZeRO-2's, with a buffer for it, does not."""
    took = {}
    for stage in (2, 3):
        zero = {"offload_optimizer": OffloadOptimizer(device="cpu")}
        (program,) = programs(plan(llama(hidden=512), stage=stage, zero=zero, mesh=Mesh(dp=1)))
        took[stage] = [op.duration_ns for op in program.ops if op.name == "cast to new memory"]
    elements = llama(hidden=512).num_trainable
    assert took[2] == []
    assert max(took[3]) == pytest.approx(2 * elements / FRESH_BYTES_PER_S * 1e9, rel=1e-3)
