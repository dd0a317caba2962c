"""GPUs that the catalog lacks, by their numbers."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec
from raysim.run import run
from raysim.scenario.clusters import ClusterResult, make_cluster
from raysim.scenario.documents import Document
from raysim.scenario.load import from_mapping
from raysim.scenario.schema_cluster import ClusterSection


def result(**section: Any) -> ClusterResult:
    document = Document(file="scenario.yaml", data=section, prefix="cluster")
    return make_cluster(ClusterSection.model_validate(section), document, None, None)


def cluster(**section: Any) -> ClusterSpec:
    made = result(**section).spec
    assert made is not None
    return made


def test_a_gpu_by_its_numbers_takes_what_they_leave_out_of_the_nearest_and_says_so() -> None:
    peaks = {"bf16": "2.5 PFLOP/s", "fp8": "5 PFLOP/s"}
    mi355x = {"name": "MI355X", "flops": peaks, "memory": "268GiB", "memory_bandwidth": "8TB/s"}
    made = result(node="hgx-h100-8", gpu=mi355x)
    assert made.spec is not None
    (node,) = made.spec.gpu_nodes
    gpu, like = node.gpu, catalog.gpu("mi300x")  # of its vendor, although B200's numbers are nearer
    assert gpu is not None
    assert (gpu.memory_bytes, gpu.memory_bytes_per_s) == (268 * 2**30, 8e12)
    assert (gpu.architecture, gpu.scale_up, gpu.scale_up_links) == ("cdna3", "xgmi", 7)
    ratio = (2500 / 1307.4 * 5000 / 2614.9) ** 0.5
    assert gpu.flops_per_s["fp16"] == pytest.approx(1307.4e12 * ratio)
    assert (node.gpu_fabric, node.usd_per_hour) == ("nvlink_mesh", None)
    assert {origin.basis for origin in gpu.provenance.values()} == {"assumed"}
    assert catalog.left_to(gpu) == (like.name,)
    assert "MI355X is a guess: MI300X gives what is left out" in "\n".join(map(str, made.notes))


def test_a_gpu_by_its_numbers_has_links_where_the_nodes_own_has_or_it_says_so() -> None:
    card = {"name": "Pro", "flops": {"bf16": "500 TFLOP/s", "fp4": "2 PFLOP/s"}}
    (pcie,) = cluster(node="g5.12xlarge", gpu=card).gpu_nodes
    assert pcie.gpu is not None
    assert (pcie.gpu.scale_up, pcie.gpu_fabric) == (None, "pcie")
    changed = {"like": "h100", "memory": "141GiB"}
    (own,) = cluster(node="hgx-h100-8", gpu=changed).gpu_nodes
    assert own.gpu is not None
    assert (own.gpu.name, own.gpu_fabric) == ("H100-SXM-80GB (changed)", "nvswitch")
    assert own.gpu.flops_per_s == catalog.gpu("h100").flops_per_s
    plain = cluster(node="hgx-h100-8", gpu={"like": "h200"}).gpu
    assert plain == catalog.gpu("h200")


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ({"name": "X"}, "cluster.gpu: gpu: say its peaks"),
        ({"name": "h100", "memory": "96GiB", "like": "h100"}, "give yours another name"),
        ({"like": "l40s", "links": "450GB/s"}, "L40S has no links between GPUs"),
        ({"like": "mi355x"}, "cluster.gpu: unknown gpu 'mi355x'"),
    ],
)
def test_a_gpu_by_too_few_numbers(gpu: dict[str, Any], said: str) -> None:
    assert said in "\n".join(map(str, result(node="hgx-h100-8", gpu=gpu).errors))


@pytest.mark.parametrize(("node", "said"), [("rtx4090-8", 1), ("a6000-8", 0)])
def test_gaming_cards_that_exchange_say_that_they_have_no_peer_to_peer(
    node: str, said: int
) -> None:
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2}
    zero = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    job = {"train": {"deepspeed": zero, "seq_len": 128}}
    cluster, model = {"node": node, "nodes": 1}, {"from": config}
    scenario = from_mapping({"name": "x", "cluster": cluster, "model": model, "jobs": [job]})
    summary = run(scenario, record=False, what_if=False).summary
    assert sum("peer-to-peer" in text for text in summary["simplifications"]) == said
