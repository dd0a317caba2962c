"""Files of the chosen job in its tool's own words; what those tools read is what was chosen."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import yaml

import raysim
from raysim.planner.deploy_yaml import deploy_yaml
from raysim.planner.files import deploy_files
from raysim.scenario.arguments import read_arguments


def files(name, **changes):
    return deploy_files(raysim.load(f"scenarios/{name}", changes))


def test_accelerates_config_is_the_users_for_the_chosen_machines():
    own = yaml.safe_load(Path("scenarios/llama31_8b_fsdp2/accelerate.yaml").read_text())
    key = "train.fsdp.fsdp_config.fsdp_reshard_after_forward"
    found = files("llama31_8b_fsdp2", **{"cluster.nodes": 2, key: False})
    config = yaml.safe_load(found["accelerate.yaml"])
    assert (config["num_machines"], config["num_processes"]) == (2, 16)
    assert config["fsdp_config"].pop("fsdp_reshard_after_forward") is False
    own["fsdp_config"].pop("fsdp_reshard_after_forward")
    assert config["fsdp_config"] == own["fsdp_config"]
    assert config["downcast_bf16"] == "no"  # not false, as YAML 1.1 has it without quotes
    assert "accelerate launch --config_file accelerate.yaml" in found["launch.sh"]


def test_megatrons_script_has_the_chosen_flags_and_all_others(tmp_path):
    chosen = {
        "train.megatron.tensor_model_parallel_size": 4, "train.megatron.micro_batch_size": 2,
    }  # fmt: skip
    found = files("llama31_70b_megatron", **chosen)
    script = tmp_path / "train.sh"
    script.write_text(found["train.sh"], encoding="utf-8")
    read = read_arguments(script, "train.sh").data
    own = raysim.load("scenarios/llama31_70b_megatron").sources["jobs", 0, "train", "megatron"]
    changed = {key for key, value in read.items() if own.documents[0].data.get(key) != value}
    assert changed == {"tensor_model_parallel_size", "micro_batch_size"}
    assert "bash train.sh" in found["launch.sh"]


def test_a_flag_that_the_script_does_not_have_is_written_out():
    found = files("llama31_70b_megatron", **{"train.megatron.context_parallel_size": 2})
    assert "train.sh" not in found
    words = found["megatron_args.txt"].split()
    assert words[words.index("--context-parallel-size") + 1] == "2"
    assert "--swiglu" in words
    assert "$(cat megatron_args.txt)" in found["launch.sh"]


def test_serves_config_has_the_chosen_replicas():
    key = "serve.deployments.1.autoscaling_config.max_replicas"
    found = files("serve_burst", **{key: 16})
    api, classifier = yaml.safe_load(found["serve_config.yaml"])["applications"][0]["deployments"]
    assert api == {"name": "api", "num_replicas": 2, "max_ongoing_requests": 2000}
    assert classifier["autoscaling_config"]["max_replicas"] == 16
    assert "num_replicas" not in classifier
    assert "serve deploy serve_config.yaml" in found["launch.sh"]


def test_ray_train_is_told_workers_and_failures():
    found = json.loads(files("llama3_70b_spot")["ray_train.json"])
    assert found["scaling_config"]["num_workers"] == [32, 64]
    assert found["run_config"]["failure_config"]["max_failures"] == 20
    assert found["your_loop"] == {"checkpoint_every_s": 1800.0}


def test_the_cloud_is_asked_for_what_was_chosen():
    spot = yaml.safe_load(files("llama3_70b_spot")["cluster.yaml"])["available_node_types"]
    assert spot["gpu"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    stays = yaml.safe_load(files("llama3_70b_spot", spot={})["cluster.yaml"])
    config = stays["available_node_types"]["gpu"]["node_config"]
    assert config == {"InstanceType": "p4de.24xlarge"}


def test_bounds_of_a_group_are_written():
    keys = {"cluster.cpu.max_replicas": 16, "cluster.cpu.min_replicas": 2}
    cluster = yaml.safe_load(files("databound_vit", **keys)["cluster.yaml"])
    cpu = cluster["available_node_types"]["cpu"]
    assert (cpu["min_workers"], cpu["max_workers"], cluster["max_workers"]) == (2, 16, 16)
    share = {"cluster.spot.max_replicas": 3, "cluster.steady.max_replicas": 4}
    groups = yaml.safe_load(files("ray_shared_cluster", **share)["raycluster.yaml"])["spec"]
    sizes = {g["groupName"]: g["maxReplicas"] for g in groups["workerGroupSpecs"]}
    assert sizes == {"spot": 3, "steady": 4}


def test_pods_are_placed_on_nodes_that_may_be_taken_back():
    def pods(**changes):
        chosen = files("ray_shared_cluster", **changes)["raycluster.yaml"]
        groups = yaml.safe_load(chosen)["spec"]["workerGroupSpecs"]
        return {g["groupName"]: g["template"]["spec"] for g in groups}

    for machine, label, value in (
        ("m5.8xlarge", "eks.amazonaws.com/capacityType", "SPOT"),
        ("n2-standard-32", "cloud.google.com/gke-spot", "true"),
        ("Standard_D32s_v5", "kubernetes.azure.com/scalesetpriority", "spot"),
    ):
        found = pods(**{"cluster.hardware.spot.node": machine})
        assert found["spot"]["nodeSelector"][label] == value
        assert label not in found["steady"].get("nodeSelector", {})
        taken = [t["key"] for t in found["spot"].get("tolerations", [])]
        assert taken == [label] * machine.startswith("Standard")
    stays = pods(spot={}, **{"cluster.hardware.spot.node": "m5.8xlarge"})
    assert "eks.amazonaws.com/capacityType" not in stays["spot"]["nodeSelector"]


def test_a_cluster_without_a_file_asks_for_the_chosen_instance():
    found = files("llama3_70b_goodput", **{"cluster.node": "p5.48xlarge"})["raycluster.yaml"]
    (group,) = yaml.safe_load(found)["spec"]["workerGroupSpecs"]
    selector = group["template"]["spec"]["nodeSelector"]
    assert selector == {"node.kubernetes.io/instance-type": "p5.48xlarge"}


def test_torchs_fsdp_is_told_what_was_chosen():
    found = json.loads(files("llama3_70b_goodput")["fsdp.json"])
    types = {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
    assert found["fully_shard"] == {"reshard_after_forward": True, "mp_policy": types}
    gpus = raysim.load("scenarios/llama3_70b_goodput").cluster.num_gpus
    assert found["device_mesh"] == {"replicate": 1, "shard": gpus}
    assert found["your_loop"]["no_sync"] is (found["your_loop"]["gradient_accumulation_steps"] > 1)
    first = {"version": 1, "sharding_strategy": "SHARD_GRAD_OP", "cpu_offload": True}
    said = json.loads(files("llama3_70b_goodput", **{"train.fsdp": first})["fsdp.json"])
    call = said["FullyShardedDataParallel"]
    assert call["sharding_strategy"] == "SHARD_GRAD_OP"
    assert call["cpu_offload"] == {"offload_params": True}


@pytest.mark.real
def test_torch_takes_the_words_of_fsdps_file():
    torch = pytest.importorskip("torch")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    second = json.loads(files("llama3_70b_goodput")["fsdp.json"])["fully_shard"]
    types = {k: getattr(torch, v) for k, v in second["mp_policy"].items()}
    fsdp.MixedPrecisionPolicy(**types)
    assert second.keys() <= inspect.signature(fsdp.fully_shard).parameters.keys()
    section = {"version": 1, "mixed_precision": "bf16"}
    said = json.loads(files("llama3_70b_goodput", **{"train.fsdp": section})["fsdp.json"])
    first = said["FullyShardedDataParallel"]
    assert first.keys() <= inspect.signature(fsdp.FullyShardedDataParallel).parameters.keys()
    fsdp.ShardingStrategy[first["sharding_strategy"]]
    fsdp.BackwardPrefetch[first["backward_prefetch"]]
    fsdp.CPUOffload(**first["cpu_offload"])


def test_strings_stay_strings_for_readers_of_yaml_1_1():
    odd = {"a": ["no", "On", "12:30:00", "0777", "1_000", "3", "v1", "5"], "b": {"c": "y"}}
    assert yaml.safe_load(deploy_yaml(odd)) == odd
