"""What is tried when nobody says, by kind of job; what contradicts itself is refused clearly."""

from __future__ import annotations

import pytest

import raysim
from raysim.planner.plan import Question, plan
from raysim.planner.space import chosen, space_of, with_batch_held

FSDP = "train.fsdp.fsdp_config."


def values(name, **changes):
    return space_of(raysim.load(f"scenarios/{name}", changes)).values


def test_a_switch_of_accelerates_file_is_moved_in_that_file():
    found = values("llama31_8b_fsdp2")
    assert found[f"{FSDP}fsdp_activation_checkpointing"] == (False, True)
    assert found[f"{FSDP}fsdp_reshard_after_forward"] == (True, False)
    assert "train.activation_checkpointing" not in found
    said = raysim.load("scenarios/llama31_8b_fsdp2")
    none = chosen(said, {f"{FSDP}fsdp_activation_checkpointing": False})
    assert said.strategy.checkpoints
    assert not none.strategy.checkpoints


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("bert_mrpc_zero3", "cluster.gpu-group.replicas"), ("mlp_pipeline", None)],
)
def test_layouts_nobody_said_are_the_same_training(name, nodes):
    """DeepSpeed's JSON or the scenario says micro-batch and accumulation; more ranks take less."""
    said = raysim.load(f"scenarios/{name}")
    held, batch = with_batch_held(said), said.strategy.batch
    grown = {} if nodes is None else {nodes: 2}
    more = chosen(held, {**grown, "train.micro_batch": batch.micro // 2}).strategy.batch
    assert held.strategy.batch == batch
    assert more.train == batch.train
    assert more.micro * 2 == batch.micro


def test_micro_batches_are_the_jobs_own_and_those_around_it():
    assert values("vit_cifar10_ddp")["train.micro_batch"] == (4, 8, 16, 32, 64, 128)
    odd = {"train.micro_batch": 6, "train.global_batch": 72}  # on four GPUs: 18 a rank
    assert values("vit_cifar10_ddp", **odd)["train.micro_batch"] == (3, 6)


def test_a_job_whose_copies_fill_a_gpu_may_be_sharded():
    said = raysim.load("scenarios/llama31_8b_sft")
    assert space_of(said).values["train.engine"] == ("ddp", "fsdp")
    assert "train.engine" not in values("vit_cifar10_ddp")
    nobody_said = plan(said, Question(vary={"train.micro_batch": [1]})).plan
    assert nobody_said.best is None
    assert nobody_said.instead.choice["train.engine"] == "fsdp"
    assert nobody_said.instead.meets


def test_samples_that_a_file_says_are_left_to_it():
    for name in ("llama3_8b_zero3", "llama31_70b_megatron", "databound_vit"):
        said = raysim.load(f"scenarios/{name}")
        assert with_batch_held(said) is said


def test_a_loop_that_accumulates_is_asked_when_to_reduce():
    key = "train.fsdp.sync_every_micro_batch"
    fsdp = {"train.fsdp": {"version": 2}}
    assert key not in values("llama31_8b_fsdp2")  # its file is Accelerate's
    assert values("llama31_8b_fsdp2", **fsdp)[key] == (False, True)


def test_failures_ask_how_often_to_save():
    found = values("llama3_70b_goodput")
    assert found["train.checkpoint.every"] == ("3h", "optimal")
    assert "train.checkpoint.every" not in values("llama3_8b_zero3")


def test_a_pipeline_is_cut_in_other_ways():
    found = values("opt_175b_3d")
    assert found["train.pipeline.stages"] == (4, 8, 16)
    assert found["train.tensor_parallel"] == (1, 2, 4, 8)
    assert "train.pipeline.schedule" not in found  # DeepSpeed has one
    assert "cluster.head.replicas" not in values("mlp_pipeline")  # there is one head


def test_a_cluster_that_grows_is_given_bounds():
    found = values("databound_vit")
    assert found["cluster.cpu.max_replicas"] == (4, 8, 16)
    assert found["cluster.cpu.min_replicas"] == (4, 8)
    said = raysim.load("scenarios/databound_vit")
    wide = chosen(said, {"cluster.cpu.max_replicas": 16, "cluster.cpu.min_replicas": 2})
    (group,) = [g for g in wide.cluster.groups if g.name == "cpu"]
    assert (group.count, group.min_count, group.max_count) == (2, 2, 16)
    assert wide.job.autoscaling.max_workers == 16  # the file's total, nine, gives way
    assert said.job.autoscaling.max_workers == 9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_replicas": 9, "max_replicas": 4}, "min_replicas is above max_replicas"),
        ({"min_replicas": 12}, "min_replicas 12 is above max_replicas 8"),
        ({"replicas": 3, "max_replicas": 4}, "give replicas, or min_replicas and max_replicas"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(changes, said):
    keys = {f"cluster.cpu.{name}": value for name, value in changes.items()}
    with pytest.raises(raysim.ScenarioError, match=said):
        raysim.load("scenarios/databound_vit", keys)


def test_nodes_that_may_be_taken_back_are_a_share_of_all():
    (key,) = values("ray_shared_cluster")
    bundles = values("ray_shared_cluster")[key]
    assert key == "together.spot_share"
    sums = {b["cluster.spot.max_replicas"] + b["cluster.steady.max_replicas"] for b in bundles}
    assert sums == {7}
    assert [b["name"] for b in bundles] == ["0 of 7", "4 of 7", "7 of 7"]


def test_spot_with_a_price_is_compared_with_on_demand():
    market = {"cluster.prices": {"gpu": "11 usd/h"}}
    said = raysim.load("scenarios/llama3_70b_spot", market)
    space = space_of(said)
    spot, demand = space.values["together.market"]
    assert (spot["name"], demand["name"]) == ("spot", "on-demand")
    rented = chosen(said, {"together.market": demand})
    assert rented.job.spot == {}
    assert rented.cluster.usd_per_hour > 2 * said.cluster.usd_per_hour
    assert chosen(said, {"together.market": spot}).job.spot
    assert "together.market" not in values("llama3_70b_spot")  # no price of spot is said


def test_workers_of_ray_train_follow_the_nodes():
    found = values("llama3_70b_spot")
    sizes = [(b["cluster.gpu.replicas"], b["trainer.num_workers"]) for b in found["together.size"]]
    assert sizes == [(4, [16, 32]), (8, [32, 64]), (16, [64, 128])]
    assert found["trainer.train.checkpoint.every"] == ("900s", "1800s", "3600s")


def test_bounds_of_replicas_of_an_application():
    found = values("serve_burst")
    key = "serve.deployments.1.autoscaling_config"
    assert found[f"{key}.max_replicas"] == (4, 8, 16)
    assert found[f"{key}.min_replicas"] == (1, 2)
    assert values("llm_fleet")["llm.replicas"] == (4, 8, 16)
    assert values("ppo_simulators")["rl.env_runners"] == (32, 64, 128)
