"""Machines by their size or by their provider's name."""

from __future__ import annotations

import pytest

from raysim.hardware import catalog
from raysim.scenario.plain_machines import by_name, by_size
from raysim.scenario.ray_cluster_yaml import read_ray_cluster
from raysim.scenario.yaml_text import parse_yaml_all

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "vcpus", "gib"),
    [
        ("c7a.large", 2, 4), ("m4.10xlarge", 40, 160), ("m7i-flex.xlarge", 4, 16),
        ("r8g.4xlarge", 16, 128), ("t3.large", 2, 8), ("t2.micro", 1, 1), ("c4.large", 2, 3.75),
        ("m6g.medium", 1, 4), ("i3.8xlarge", 32, 244), ("ml.m5.2xlarge", 8, 32),
        ("n1-highmem-32", 32, 208), ("n2d-standard-16", 16, 64), ("e2-highmem-4", 4, 32),
        ("c2-standard-30", 30, 120), ("n2-custom-6-20480", 6, 20),
        ("Standard_D2s_v3", 2, 8), ("Standard_E8ds_v5", 8, 64), ("Standard_F16s_v2", 16, 32),
        ("ecs.g6.xlarge", 4, 16), ("ecs.n4.large", 2, 4),
    ],
)  # fmt: skip
def test_a_name_says_the_size(name: str, vcpus: int, gib: float) -> None:
    """As the providers' pages of instance types have them."""
    node = by_name(name)
    assert node is not None
    assert (node.name, node.vcpus, node.memory_bytes / GIB) == (name, vcpus, gib)
    assert 0.02 * vcpus < (node.usd_per_hour or 0) < 0.12 * vcpus  # clouds' lists of such sizes


@pytest.mark.parametrize(
    "name",
    [
        "p2.xlarge",
        "g3.8xlarge",
        "a2-highgpu-1g",
        "m5",
        "x",
        "u-6tb1",
        "m5.99999xlarge",
        "n2-custom-0-1024",
        "n1-standard-" + "9" * 5000,
    ],
)
def test_others_stay_unknown(name: str) -> None:
    assert by_name(name) is None


def test_the_rule_agrees_with_every_row_of_the_catalog() -> None:
    """Names that both know have the same vCPUs and memory."""
    both = 0
    for name in catalog.names("node"):
        guessed, row = by_name(name), catalog.node(name)
        if guessed is not None:
            both += 1
            size = (row.vcpus, row.memory_bytes, 0)
            assert (guessed.vcpus, guessed.memory_bytes, row.gpu_count) == size, name
    assert both > 80


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("m7i.4xlarge", 2), ("m6a.xlarge", 2), ("m5d.4xlarge", 2), ("m7a.4xlarge", 1),
        ("c7gn.4xlarge", 1), ("t4g.small", 1), ("n2-standard-16", 2), ("t2d-standard-16", 1),
        ("c4a-standard-8", 1), ("Standard_D16s_v5", 2), ("Standard_D16pds_v5", 1),
        ("ecs.g7.4xlarge", 2), ("ecs.g8y.4xlarge", 1),
    ],
)  # fmt: skip
def test_a_name_says_whether_a_vcpu_is_a_core(name: str, threads: int) -> None:
    """Arm, and the EPYCs that AWS and GCP rent without SMT."""
    node = by_name(name)
    assert node is not None
    assert node.cpu.threads_per_core == threads
    assert node.cpu.cores == node.vcpus / threads


def test_by_size_cuts_and_grows_the_plain_machines() -> None:
    small = by_size(2, 4 * GIB)
    assert (small.name, small.vcpus, small.memory_bytes) == ("cpu-2", 2, 4 * GIB)
    assert small.cpu.cores * 4 == pytest.approx(catalog.node("cpu-8").cpu.cores)
    assert by_size(None, 100 * GIB).vcpus == 32  # what holds it
    large = by_size(128, None)
    assert (large.vcpus, large.memory_bytes) == (128, 512 * GIB)
    assert large.cpu.flops_per_s == 2 * catalog.node("cpu-64").cpu.flops_per_s


@pytest.mark.parametrize("name", ["c6i.2xlarge", "m6i.2xlarge", "m6i.8xlarge", "r6i.2xlarge"])
def test_a_size_costs_about_what_the_clouds_list_says(name: str) -> None:
    row = catalog.node(name)
    priced = by_size(row.vcpus, row.memory_bytes)
    assert priced.usd_per_hour == pytest.approx(row.usd_per_hour, rel=0.08)
    assert priced.provenance["usd_per_hour"].basis == "assumed"


def test_a_local_machine_has_what_ray_start_is_told() -> None:
    text = (
        "provider: {type: local, head_ip: a, worker_ips: [b]}\n"
        "head_start_ray_commands:\n  - ray stop\n"
        "  - ulimit -n 65536; ray start --head --num-cpus 8 --port=6379\n"
        "worker_start_ray_commands:\n"
        "  - ray start --address=$RAY_HEAD_IP:6379 --num-gpus=4 --resources='{\"disk\":2}'\n"
    )
    (document,) = parse_yaml_all(text, "cluster.yaml")
    head, worker = read_ray_cluster(document).groups
    assert (head.vcpus, head.gpus, head.resources) == (8, None, {"CPU": 8.0})
    assert (worker.vcpus, worker.gpus) == (None, 4)
    assert worker.resources == {"GPU": 4.0, "disk": 2.0}
