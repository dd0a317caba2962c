"""Checkpoints: files against real DeepSpeed and torch, and the physics of writing and reading."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.hardware.specs import SharedStorageSpec
from raysim.hardware.topology import Topology
from raysim.models.huggingface import build
from raysim.perf.host import STAGING_BYTES_PER_S
from raysim.training.checkpoint.cost import CheckpointCost, checkpoint_cost
from raysim.training.checkpoint.files import checkpoint_files
from raysim.training.checkpoint.reads import checkpoint_reads
from raysim.training.checkpoint.traffic import SAVE_BYTES_PER_S
from raysim.training.communicators import Communicators
from raysim.training.plan import MegatronSettings, SavingSettings, TrainingPlan
from raysim.training.settings.deepspeed import OffloadOptimizer, PipelineSettings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.units import GIB, TIB
from raysim.validate.training_plans import plan_of
from tests.training_parts import cluster, llama, plan

FILE = Path(__file__).resolve().parents[2] / "validation/data/checkpoints/files.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
PICKLE_BYTES = 21_000
"""Of the largest measured file of a small model whose tensors are few: names, shapes, config."""
RECORD_BYTES = 360
"""A zip record per tensor: header, alignment to 64 bytes, CRC, directory."""
DCP_RECORD_BYTES = 1_900
"""``torch.distributed.checkpoint`` runs ``torch.save`` per tensor, with a footer of its own."""


def case_plan(case: dict[str, Any]) -> TrainingPlan:
    config = case["config"]
    spread = config.get("checkpoint", {}).get("parallel_write", {}).get("pipeline_stage", False)
    return replace(plan_of(case), saving=SavingSettings(pipeline_stage=spread))


def cost(p: TrainingPlan, kind: Any = "full", nodes: int = 2) -> CheckpointCost:
    comms = Communicators(p.mesh, Topology.build(cluster(nodes)), folded=True)
    return checkpoint_cost(p, comms, kind)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_files_are_those_of_the_real_library(case: dict[str, Any]) -> None:
    """Names and tensor bytes equal; what is on top is what pickle and zip take."""
    p = case_plan(case)
    placement = [(0, i) for i in range(case["ranks"])]
    ours = {f.name: f.size_bytes for f in checkpoint_files(p, "full", placement)}
    theirs = {name.removeprefix("t/"): found for name, found in case["files"].items()}
    if case["engine"] == "ddp":
        assert list(ours.values()) == [theirs["ddp.pt"][1]]
        return
    if case["engine"] == "fsdp2":
        for name, size in ours.items():
            records = 4 * len(list(p.model.parameters()))
            assert 0 < theirs[f"sharded/{name}"][0] - size < DCP_RECORD_BYTES * records
        whole = replace(p, fsdp=replace(p.fsdp, full_state_dict=True))
        (full,) = checkpoint_files(whole, "full", placement)
        assert full.size_bytes == theirs["full.pt"][1]
        return
    for gathered in checkpoint_files(p, "model", placement):
        if "whole.bin" in theirs:
            assert gathered.size_bytes == theirs["whole.bin"][1]
    held = {n: f for n, f in theirs.items() if n not in ("latest", "whole.bin")}
    assert ours == {name: found[1] for name, found in held.items()}
    tensors = len(list(p.model.parameters()))
    for size, tensor_bytes, scalar_bytes in held.values():
        assert 0 < size - tensor_bytes - scalar_bytes < PICKLE_BYTES + 4 * tensors * RECORD_BYTES


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["reads"] and "fails" not in c["reads"][0]],
    ids=lambda c: c["name"],
)  # fmt: skip
def test_ranks_open_the_files_that_real_ranks_open(case: dict[str, Any]) -> None:
    p = case_plan(case)
    placement = [(0, i) for i in range(case["ranks"])]
    ours: Counter[tuple[int, str]] = Counter()
    for read in checkpoint_reads(p, "full", checkpoint_files(p, "full", placement)):
        ours[read.rank, read.what] += read.times
    theirs = {
        (rank, name.removeprefix("t/")): times
        for rank, opened in enumerate(case["reads"]) for name, times in opened.items()
    }  # fmt: skip
    assert dict(ours) == theirs


def test_bloom_176b_as_its_logs_say() -> None:
    """``du -h``, which rounds up: 329G of weights, 2.3T with fp32 weights and moments.

    bigscience-workshop/bigscience, ``train/tr11-176B-ml/README.md`` and ``chronicles.md``: 4 x 12 x
    8 ranks, 40 s. The store's rate, GPFS over NVMe, is not stated; threads alone would take 7 s.
    """
    config = json.loads((FILE.parents[3] / "tests/data/hf_configs/bloom.json").read_text())
    p = plan(
        build(config, seq_len=2048), stage=1, mesh=Mesh(tp=4, pp=12, dp=8),
        grad_accum_dtype="fp32",
        pipeline=PipelineSettings(stages=12, partition_method="type:bloomblock"),
    )  # fmt: skip
    found = cost(p, nodes=48)
    weights = sum(f.size_bytes for f in found.files if f.name.startswith("layer_"))
    assert math.ceil(weights / GIB) == 329
    assert math.ceil(10 * found.total_bytes / TIB) == 23
    assert len([f for f in found.files if "optim_states" in f.name]) == 384
    store = SharedStorageSpec(name="fast")
    fast = cost(replace(p, saving=SavingSettings(storage=store)), nodes=48)
    assert 6 < fast.seconds < 40


def test_a_node_of_one_writer_is_bound_by_its_thread() -> None:
    """DDP: rank 0 copies from pageable memory and pickles, in turn; the disk is faster."""
    p = plan(engine="ddp", precision="fp32", mesh=Mesh(dp=8))
    found = cost(p, nodes=1)
    (file,) = found.files
    gpu = catalog.node("hgx-h100-8").gpu
    assert gpu is not None
    each_s = 1 / SAVE_BYTES_PER_S + 1 / gpu.pcie_bytes_per_s + 1 / STAGING_BYTES_PER_S
    assert found.seconds == pytest.approx(file.size_bytes * each_s, rel=1e-3)
    assert found.stall_seconds == found.seconds
    assert found.total_bytes == 12 * p.model.num_parameters


def test_eight_writers_of_a_node_share_its_disk() -> None:
    p = plan(stage=3)
    disk = catalog.node("hgx-h100-8").disks[0][0]
    found = cost(p, nodes=1)
    assert found.seconds == pytest.approx(found.total_bytes / disk.write_bytes_per_s, rel=1e-3)
    assert cost(replace(p, mesh=Mesh(dp=16))).seconds == pytest.approx(found.seconds / 2, rel=1e-2)


def test_a_shared_store_is_divided_among_nodes() -> None:
    store = SharedStorageSpec(name="gpfs", write_bytes_per_s=1e9, read_bytes_per_s=2e9)
    p = plan(stage=3, mesh=Mesh(dp=16), saving=SavingSettings(storage=store))
    found = cost(p)
    assert found.seconds == pytest.approx(found.total_bytes / 1e9, rel=1e-3)
    assert found.load_seconds == pytest.approx(found.total_bytes / 2e9, rel=1e-2)
    narrow = replace(store, node_write_bytes_per_s=0.25e9)
    slower = cost(replace(p, saving=SavingSettings(storage=narrow)))
    assert slower.seconds == pytest.approx(found.total_bytes / 0.5e9, rel=1e-3)


def test_saved_asynchronously_training_waits_for_copies_only() -> None:
    p = plan(stage=3)
    blocking = cost(p, nodes=1)
    free = cost(replace(p, saving=SavingSettings(asynchronous=True)), nodes=1)
    assert free.stall_seconds < 0.1 * blocking.stall_seconds
    assert free.seconds > free.stall_seconds
    assert free.host_bytes == free.total_bytes > blocking.host_bytes
    assert free.files == blocking.files


def test_gathered_weights_pass_through_the_memory_of_rank_zero() -> None:
    gathers = {"stage3_gather_16bit_weights_on_model_save": True}
    p = plan(stage=3, mesh=Mesh(dp=16), zero=gathers)
    found = cost(p, "model")
    weights = 2 * p.model.num_parameters
    assert [f.size_bytes for f in found.files] == [weights] == [found.host_bytes]
    assert found.read_bytes == 16 * weights
    assert found.seconds > weights / SAVE_BYTES_PER_S


def test_fsdp_whole_or_in_shards() -> None:
    p = plan(engine="fsdp", precision="fp32", fsdp=FsdpSettings())
    shards = cost(p, nodes=1)
    whole = cost(replace(p, fsdp=FsdpSettings(full_state_dict=True)), nodes=1)
    assert len(shards.files) == 8
    assert len(whole.files) == 1
    assert shards.total_bytes == 12 * p.model.num_parameters
    assert whole.seconds > shards.seconds
    assert whole.host_bytes == whole.total_bytes > shards.host_bytes
    replicas = cost(replace(p, fsdp=FsdpSettings(replicas=2)), nodes=1)
    assert replicas.total_bytes == shards.total_bytes
    assert replicas.read_bytes == 2 * shards.read_bytes


def test_every_replica_reads_the_weights() -> None:
    """Twice each: DeepSpeed's loader opens the file to check it first."""
    p = plan(stage=1, mesh=Mesh(dp=16))
    found = cost(p)
    model = sum(f.size_bytes for f in found.files if "model_states" in f.name)
    assert found.read_bytes == 2 * 16 * model + (found.total_bytes - model)
    universal = plan(stage=3, saving=SavingSettings(load_universal=True))
    assert cost(universal, nodes=1).read_bytes == 8 * cost(plan(stage=3), nodes=1).total_bytes


def test_node_local_storage_keeps_model_states_on_every_node() -> None:
    p = plan(stage=1, mesh=Mesh(dp=16))
    local = replace(p, saving=SavingSettings(use_node_local_storage=True))
    writers = [f.rank for f in cost(local).files if "model_states" in f.name]
    assert writers == [0, 8]


def test_offloaded_states_do_not_cross_pcie() -> None:
    on_cpu = {"offload_optimizer": OffloadOptimizer(device="cpu")}
    store = SavingSettings(storage=SharedStorageSpec(name="fast"))
    p = plan(stage=3, saving=store)
    there = plan(stage=3, zero=on_cpu, saving=store)
    assert cost(there, nodes=1).seconds < cost(p, nodes=1).seconds
    assert cost(there, nodes=1).total_bytes == cost(p, nodes=1).total_bytes
    assert cost(there, nodes=1).host_bytes == 0


def test_megatron_shares_the_work_or_collects_it() -> None:
    mesh = Mesh(tp=2, dp=4)
    distributed = MegatronSettings(use_distributed_optimizer=True)
    p = plan(llama(tied=False), engine="megatron", mesh=mesh, megatron=distributed)
    new = cost(p, nodes=1)
    old = cost(replace(p, saving=SavingSettings(ckpt_format="torch")), nodes=1)
    assert len(new.files) == 8
    assert len(old.files) == 2
    assert new.total_bytes == pytest.approx(old.total_bytes, rel=1e-4)
    assert old.seconds > new.seconds
    plain = replace(p, megatron=MegatronSettings())
    assert cost(plain, nodes=1).read_bytes > new.read_bytes
