"""Ray's and KubeRay's files, unmodified, into nodes."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.hardware.cluster import ClusterSpec
from raysim.scenario.clusters import ClusterResult, make_cluster
from raysim.scenario.documents import Document
from raysim.scenario.kuberay import parse_quantity
from raysim.scenario.quantities import parse_nics
from raysim.scenario.schema_cluster import ClusterSection
from raysim.scenario.yaml_text import parse_yaml_all


def result(text: str | None, workers: int | None = None, **section: Any) -> ClusterResult:
    files = None if text is None else parse_yaml_all(text, "cluster.yaml")
    data = section if text is None else {"from": "cluster.yaml", **section}
    document = Document(file="scenario.yaml", data=data, prefix="cluster")
    return make_cluster(ClusterSection.model_validate(data), document, files, workers)


def cluster(text: str | None, workers: int | None = None, **section: Any) -> ClusterSpec:
    made = result(text, workers, **section)
    assert made.spec is not None, [str(p) for p in made.errors]
    return made.spec


def errors(text: str | None, workers: int | None = None, **section: Any) -> str:
    made = result(text, workers, **section)
    assert made.spec is None
    return "\n".join(str(p) for p in made.errors)


AWS = """
cluster_name: x
max_workers: 10
provider: {type: aws, region: us-west-2}
docker: {image: rayproject/ray}
available_node_types:
  head: {node_config: {InstanceType: m5.4xlarge}, resources: {CPU: 0}}
  gpu:
    node_config: {InstanceType: p4d.24xlarge}
    min_workers: 1
    max_workers: 6
head_node_type: head
"""


def test_aws() -> None:
    made = cluster(AWS)
    head, gpu = made.groups
    assert (head.name, head.node.name, head.count, head.head) == ("head", "m5.4xlarge", 1, True)
    assert (gpu.node.name, gpu.count, gpu.min_count, gpu.max_count) == ("p4d.24xlarge", 1, 1, 6)
    assert head.resources["CPU"] == 0
    assert gpu.resources == {"CPU": 96.0, "GPU": 8.0}
    assert made.num_gpus == 8


def test_the_autoscaler_brings_what_the_workers_need() -> None:
    made = result(AWS, workers=32)
    assert made.spec is not None
    assert made.spec.num_gpus == 32
    assert any("autoscaled from 1 to 4 nodes" in str(note) for note in made.notes)
    assert cluster(AWS, workers=1000).num_gpus == 48  # max_workers: the job will be refused


def test_what_has_no_effect_is_said_in_one_note() -> None:
    said = [str(note) for note in result(AWS).notes]
    assert any("no effect on the prediction: docker" in line for line in said)


def test_a_head_type_with_workers_is_two_groups() -> None:
    text = AWS.replace("max_workers: 6", "max_workers: 2").replace(
        "head_node_type: head", "head_node_type: gpu"
    )
    names = [(g.name, g.count, g.head) for g in cluster(text).groups]
    assert names == [("head", 0, False), ("gpu", 1, True), ("gpu-workers", 1, False)]


def test_gcp_and_azure_instance_types() -> None:
    gcp = AWS.replace(
        "InstanceType: p4d.24xlarge", "machineType: zones/x/machineTypes/a2-highgpu-8g"
    )
    assert cluster(gcp).groups[1].node.provider == "gcp"
    azure = AWS.replace(
        "InstanceType: p4d.24xlarge", "azure_arm_parameters: {vmSize: Standard_ND96asr_v4}"
    )
    assert cluster(azure).groups[1].node.provider == "azure"


def test_local_provider_needs_hardware() -> None:
    text = "cluster_name: x\nprovider: {type: local, head_ip: a, worker_ips: [b, c]}\n"
    assert "add cluster.hardware.head" in errors(text)
    made = cluster(text, hardware={"head": {"node": "cpu-32"}, "worker": {"node": "hgx-h100-8"}})
    assert [(g.name, g.count) for g in made.groups] == [("head", 1), ("worker", 2)]


@pytest.mark.parametrize(
    ("provider", "head"),
    [("aws", "m5.large"), ("gcp", "n1-standard-2"), ("azure", "Standard_D2s_v3")],
)
def test_a_file_without_node_types_has_its_provider_s(provider: str, head: str) -> None:
    """``autoscaler/<provider>/defaults.yaml``: two small nodes more, on demand."""
    made = cluster(f"cluster_name: minimal\nprovider: {{type: {provider}, region: r}}\n")
    names = [(g.node.name, g.node.vcpus, g.count, g.max_count) for g in made.groups]
    assert names == [(head, 2, 1, 1), (head, 2, 0, 2)]


def test_an_instance_type_that_the_catalog_has_no_row_for_is_what_its_name_says() -> None:
    made = result(AWS.replace("m5.4xlarge", "r6g.2xlarge"))
    assert made.spec is not None
    node = made.spec.groups[0].node
    assert (node.name, node.vcpus, node.memory_bytes) == ("r6g.2xlarge", 8, 64 * 2**30)
    assert node.usd_per_hour == pytest.approx(0.472)  # AWS's list: 0.4032 of Graviton, r6i 0.504
    assert node.provenance["vcpus"].basis == "assumed"
    said = "r6g.2xlarge is not in the catalog; taken as a plain machine with 8 vCPUs, 64 GiB"
    assert any(said in str(note) for note in made.notes)


def test_a_node_type_without_an_instance_type_is_as_large_as_its_resources() -> None:
    made = cluster(
        AWS.replace("{InstanceType: m5.4xlarge}, resources: {CPU: 0}", "{}, resources: {CPU: 6}")
    )
    assert (made.groups[0].node.vcpus, made.groups[0].node.gpu_count) == (6, 0)
    said = errors(AWS.replace("{InstanceType: m5.4xlarge}, resources: {CPU: 0}", "{}"))
    assert "add cluster.hardware.head, such as" in said


def test_a_size_that_no_machine_has_is_not_taken() -> None:
    text = AWS.replace(
        "{InstanceType: m5.4xlarge}, resources: {CPU: 0}", "{}, resources: {CPU: 1e15}"
    )
    assert "add cluster.hardware.head, such as" in errors(text)


def test_an_unknown_gpu_machine_is_refused_with_the_way_out() -> None:
    said = errors(AWS.replace("p4d.24xlarge", "p2.xlarge"))
    assert "unknown node 'p2.xlarge'" in said
    assert "or say what it is: cluster.hardware.gpu" in said


RAYJOB = """
apiVersion: ray.io/v1alpha1
kind: {kind}
spec:
  {field}:
    headGroupSpec:
      template: {{spec: {{containers: [{{resources: {{limits: {{cpu: 500m, memory: 2Gi}}}}}}]}}}}
    workerGroupSpecs:
    - groupName: workers
      replicas: 2
      numOfHosts: 2
      rayStartParams: {{num-cpus: "3", resources: '"{{\\"TPU\\": 4}}"'}}
      template:
        spec:
          nodeSelector: {{{selector}}}
          containers:
          - resources:
              limits: {{cpu: "11.5", memory: 80G, nvidia.com/gpu: "{gpus}"}}
"""


def kuberay(
    selector: str, gpus: int = 8, kind: str = "RayJob", field: str = "rayClusterSpec"
) -> str:
    return RAYJOB.format(kind=kind, field=field, selector=selector, gpus=gpus)


HEAD = {"head": {"node": "cpu-32"}}


@pytest.mark.parametrize(
    ("kind", "field"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")]
)
def test_kuberay_resources(kind: str, field: str) -> None:
    text = kuberay("node.kubernetes.io/instance-type: p5.48xlarge", kind=kind, field=field)
    head, workers = cluster(text, hardware=HEAD).groups
    assert head.resources == {"CPU": 1.0, "memory": 2.0 * 2**30}
    assert workers.count == 4  # two replicas of two hosts
    assert workers.resources == {"CPU": 3.0, "GPU": 8.0, "memory": 80e9, "TPU": 4.0}
    assert workers.node.name == "p5.48xlarge"
    assert (workers.node.vcpus, workers.node.memory_bytes) == (12, 80_000_000_000)


@pytest.mark.parametrize(
    ("selector", "gpus", "gpu", "provider"),
    [
        ("cloud.google.com/gke-accelerator: nvidia-tesla-a100", 8, "A100-SXM-40GB", "gcp"),
        ("cloud.google.com/gke-accelerator: nvidia-l4", 4, "L4", "gcp"),
        ("cloud.google.com/gke-accelerator: nvidia-h100-80gb", 8, "H100-SXM-80GB", "gcp"),
        ("nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB", 4, "A100-SXM-80GB", None),
    ],
)
def test_hardware_from_node_labels(
    selector: str, gpus: int, gpu: str, provider: str | None
) -> None:
    node = cluster(kuberay(selector, gpus), hardware=HEAD).groups[1].node
    assert node.gpu is not None
    assert (node.gpu.name, node.gpu_count) == (gpu, gpus)
    assert provider in (None, node.provider)


def test_the_scenario_says_what_the_file_does_not() -> None:
    said = {**HEAD, "workers": {"node": "hgx-h100-8", "gpu": "h200", "nics": "4x200Gb/s"}}
    made = cluster(kuberay("a: b", 4), hardware=said, prices={"workers": "10 usd/h"})
    node = made.groups[1].node
    assert node.gpu is not None
    assert (node.gpu.name, node.gpu_count) == ("H200-SXM-141GB", 4)
    assert (node.nic_count, node.nic.bytes_per_s, node.nic.kind) == (4, 25e9, "infiniband")
    assert made.groups[1].usd_per_hour == 10
    assert "add cluster.hardware.workers" in errors(kuberay("a: b"), hardware=HEAD)


@pytest.mark.parametrize(
    ("said", "kind", "gbit"),
    [
        ("1x100Gb/s ethernet", "ethernet", 100),
        ("1x100Gb/s", "infiniband", 100),  # of the node's own kind
        ("2x150Gb/s RoCE", "roce", 150),  # no catalog NIC has that rate
        ("8x roce-400", "roce", 400),
    ],
)
def test_nics_may_say_their_kind(said: str, kind: str, gbit: float) -> None:
    made = cluster(
        kuberay("a: b"), hardware={**HEAD, "workers": {"node": "hgx-h100-8", "nics": said}}
    )
    nic = made.groups[1].node.nic
    assert (nic.kind, nic.bytes_per_s * 8 / 1e9) == (kind, pytest.approx(gbit))


def test_nics_of_an_unknown_kind_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="1x100Gb/s ethernet, infiniband, roce or efa"):
        parse_nics("1x100Gb/s fast")


def test_several_documents_in_one_file() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\n---" + kuberay("a: b")
    assert cluster(text, hardware={**HEAD, "workers": {"node": "hgx-h100-8"}}).num_gpus == 32


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("54Gi", 54 * 2**30),
        ("500m", 0.5),
        ("2", 2),
        ("1e3", 1000),
        (".5k", 500),
        ("3E", 3e18),
        ("0E400", 0),
    ],
)
def test_kubernetes_quantities(text: str, value: float) -> None:
    if value > 1e18:
        with pytest.raises(ValueError, match="too large"):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5GB", "-1", "1.2.3", "Gi", True, None, [], "1e9999"])
def test_no_kubernetes_quantities(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected|too large"):
        parse_quantity(text)


def test_hyperthreading_off() -> None:
    """A machine then has a vCPU per core; a file that says its own size keeps it."""
    off = cluster(None, nodes=1, node="m6i.4xlarge", threads_per_core=1).groups[0]
    assert (off.node.vcpus, off.node.cpu.cores, off.resources["CPU"]) == (8, 8, 8.0)
    assert off.node.cpu.provenance["threads_per_core"].source == "the scenario"
    said = "{InstanceType: m5.4xlarge, CpuOptions: {CoreCount: 8, ThreadsPerCore: 1}}"
    in_file = cluster(AWS.replace("{InstanceType: m5.4xlarge}", said))
    assert [g.node.vcpus for g in in_file.groups] == [8, 96]
    gcp = "{machineType: n2-standard-16, advancedMachineFeatures: {threadsPerCore: 1}}"
    assert cluster(AWS.replace("{InstanceType: m5.4xlarge}", gcp)).groups[0].node.vcpus == 8
    sized = AWS.replace("{node_config: {InstanceType: m5.4xlarge}, resources: {CPU: 0}}",
                        "{resources: {CPU: 32}}")  # fmt: skip
    for section, cores in (({}, 16), ({"hardware": {"head": {"threads_per_core": 1}}}, 32)):
        node = cluster(sized, **section).groups[0].node
        assert (node.vcpus, node.cpu.cores) == (32, cores)


def test_written_in_place() -> None:
    made = cluster(None, nodes=3, node="hgx-h100-8", gpus=4, head="cpu-32", fabric="fat_tree")
    assert [(g.name, g.count, g.node.gpu_count) for g in made.groups] == [
        ("head", 1, 0),
        ("workers", 3, 4),
    ]
    assert made.fabric.kind == "fat_tree"


def test_fabric_by_default_follows_the_nics() -> None:
    assert cluster(None, nodes=2, node="hgx-h100-8").fabric.kind == "rail_fat_tree"
    assert cluster(None, nodes=2, node="g5.12xlarge").fabric.kind == "star"


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"node": "hgx-h100-8", "gpus": 9}, "9 GPUs asked, but hgx-h100-8 has 8"),
        ({"node": "cpu-32", "gpus": 1}, "cpu-32 has no GPUs"),
        ({"node": "hgx-h100-8", "gpu": "H900"}, "unknown gpu 'H900'"),
        ({"node": "hgx-h100-8", "prices": {"nobody": "1 usd/h"}}, "no group 'nobody'"),
        ({"node": "hgx-h100-8", "head": "cpu-33"}, "unknown node 'cpu-33'"),
    ],
)
def test_wrong_in_place(section: dict[str, Any], reason: str) -> None:
    assert reason in errors(None, nodes=2, **section)


def test_sections_contradict() -> None:
    for data in ({}, {"from": "x", "node": "y"}, {"node": "y", "hardware": {"a": {}}}):
        with pytest.raises(ValueError, match="validation error"):
            ClusterSection.model_validate(data)


def test_groups_are_listed_when_a_name_is_wrong() -> None:
    text = kuberay("node.kubernetes.io/instance-type: p5.48xlarge")
    said = errors(text, hardware={"wrokers": {"node": "cpu-32"}})
    assert "no group 'wrokers'; did you mean 'workers'?" in said


MINIMAL = """
cluster_name: minimal
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
  ray.worker.default:
    min_workers: 1
    max_workers: 4
    node_config: {InstanceType: g5.12xlarge}
"""


def test_head_type_and_total_of_the_providers_defaults() -> None:
    made = cluster(MINIMAL, workers=16)
    assert [(g.name, g.count) for g in made.groups] == [
        ("ray.head.default", 1),
        ("ray.worker.default", 2),  # max_workers of aws/defaults.yaml
    ]


def test_a_file_from_before_ray_2() -> None:
    text = """
cluster_name: old
min_workers: 1
max_workers: 3
provider: {type: azure, location: westus2}
head_node: {azure_arm_parameters: {vmSize: Standard_D32s_v5}}
worker_nodes: {azure_arm_parameters: {vmSize: Standard_ND96asr_v4}}
"""
    made = result(text, workers=24, hardware={"ray-legacy-head-node-type": {"node": "cpu-32"}})
    assert made.spec is not None, made.errors
    assert [(g.name, g.count) for g in made.spec.groups] == [
        ("ray-legacy-head-node-type", 1),
        ("ray-legacy-worker-node-type", 3),
    ]
    wrong = errors(
        text.replace("ND96asr", "ND96xyz"),
        hardware={"ray-legacy-head-node-type": {"node": "cpu-32"}},
    )
    assert wrong.startswith("cluster.yaml:7:15   available_node_types.ray-legacy-worker-node-type")


def test_gpus_attached_to_a_gcp_machine() -> None:
    text = MINIMAL.replace("type: aws", "type: gcp").replace(
        "{InstanceType: g5.12xlarge}",
        "{machineType: n1-standard-2, guestAccelerators: "
        "[{acceleratorType: nvidia-tesla-t4, acceleratorCount: 2}]}",
    )
    node = cluster(text, hardware={"ray.head.default": {"node": "cpu-32"}}).groups[1].node
    assert node.gpu is not None
    assert (node.name, node.gpu.name, node.gpu_count) == ("n1-standard-2", "T4", 2)
    assert (node.gpu_fabric, node.usd_per_hour) == ("pcie", None)
    other = cluster(
        text.replace("n1-standard-2", "n1-custom-2"),
        hardware={"ray.head.default": {"node": "cpu-32"}},
    )
    assert other.groups[1].node.gpu == node.gpu


def test_a_job_on_a_cluster_of_another_file() -> None:
    text = "apiVersion: ray.io/v1\nkind: RayJob\nspec:\n  clusterSelector: {ray.io/cluster: x}\n"
    assert errors(text).startswith("cluster.yaml:4:3   spec.clusterSelector: the job runs on")


POD = "{spec: {containers: [{resources: {limits: %s}}]}}"
TPUS = f"""
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
    resources: {{CPU: "0", big: 2}}
    labels: {{ray.io/region: us-central2}}
    rayStartParams: {{num-cpus: "3", resources: '"{{\\"small\\": 4}}"'}}
    template: {POD % "{cpu: 8, memory: 40G}"}
  workerGroupSpecs:
  - groupName: tpus
    replicas: 2
    rayStartParams: {{labels: "ray.io/region=here,disk=fast"}}
    labels: {{disk: slow}}
    template: {POD % "{cpu: 24, memory: 200G, google.com/tpu: 4}"}
"""


def test_a_groups_own_resources_and_labels_come_before_the_pods() -> None:
    made = result(TPUS)
    assert made.spec is not None, [str(p) for p in made.errors]
    head, tpus = made.spec.groups
    assert head.resources == {"CPU": 0.0, "memory": 40e9, "big": 2.0}
    assert head.labels == {"ray.io/region": "us-central2"}
    assert tpus.resources == {"CPU": 24.0, "memory": 200e9, "TPU": 4.0}
    assert tpus.labels == {"ray.io/region": "here", "disk": "slow"}
    assert "counted as Ray's TPU" in str(made.notes)
    told = TPUS.replace('{labels: "ray', '{resources: "{\\"TPU\\": 1}", labels: "ray')
    assert cluster(told).groups[1].resources["TPU"] == 1.0


def test_a_group_without_a_limit_is_said_not_to_grow() -> None:
    text = TPUS.replace("spec:\n", "spec:\n  enableInTreeAutoscaling: true\n", 1)
    made = result(text)
    assert made.spec is not None
    assert made.spec.groups[1].max_count == 2
    assert "no limit; taken as 2" in str(made.notes)
    assert "no limit" not in str(result(TPUS).notes)


def test_a_slice_of_a_gpu_is_refused() -> None:
    said = errors(TPUS.replace("google.com/tpu: 4", "nvidia.com/mig-2g.20gb: 1"))
    assert "a slice of a GPU (MIG) is not modelled" in said


def test_labels_of_node_types() -> None:
    made = cluster(AWS.replace("min_workers: 1", "min_workers: 1\n    labels: {zone: a}"))
    assert [group.labels for group in made.groups] == [{}, {"zone": "a"}]


def test_gpus_on_a_gcp_machine_that_the_catalog_has_no_row_for() -> None:
    gpu = "guestAccelerators: [{acceleratorType: nvidia-tesla-t4, acceleratorCount: 1}]"
    text = AWS.replace("InstanceType: p4d.24xlarge", f"machineType: n1-highcpu-4, {gpu}")
    node = cluster(text).groups[1].node
    assert (node.vcpus, node.memory_bytes, node.gpu_count) == (4, round(3.6 * 2**30), 1)
    assert node.gpu is not None
    assert node.gpu.name == "T4"


@pytest.mark.parametrize(
    "said", ["acceleratorType: v2-8", "acceleratorConfig: {type: V4, topology: 2x2x2}"]
)
def test_tpus_are_named_where_they_are_refused(said: str) -> None:
    text = AWS.replace("InstanceType: p4d.24xlarge", said)
    assert "unknown node 'v" in errors(text).lower()
    assert cluster(text, hardware={"gpu": {"node": "cpu-64"}}).groups[1].node.vcpus == 64


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("workerGroupSpecs:", "workerGroupSpec:", "did you mean 'workerGroupSpecs'?"),
        ("replicas: 2", "replica: 2", "did you mean 'replicas'?"),
        ("memory: 200G, ", "memory: 200G, nvidia.com/gpus: 8, ", "did you mean 'nvidia.com/gpu'?"),
        ("kind: RayCluster", "kind: Raycluster", "did you mean 'RayCluster'?"),
    ],
)
def test_fields_that_are_nearly_kuberays_are_refused(old: str, new: str, said: str) -> None:
    """As ``kubectl apply`` does; silence would leave the cluster without its workers."""
    assert said in errors(TPUS.replace(old, new))


@pytest.mark.parametrize(
    "config",
    [
        "{InstanceType: p4d.24xlarge, InstanceMarketOptions: {MarketType: spot}}",
        "{machineType: a2-highgpu-8g, scheduling: [{preemptible: true}]}",
        "{azure_arm_parameters: {vmSize: Standard_ND96asr_v4, priority: Spot}}",
    ],
)
def test_spot_machines_without_a_price_are_told_so(config: str) -> None:
    text = AWS.replace("{InstanceType: p4d.24xlarge}", config)
    assert "gpu asks for spot machines; they are priced on demand" in str(result(text).on_demand)
    assert not result(text, prices={"gpu": "9 usd/h"}).on_demand
    assert not result(AWS).on_demand


def test_spot_pods_without_a_price_are_told_so() -> None:
    selector = "{nodeSelector: {karpenter.sh/capacity-type: spot}, containers:"
    made = result(TPUS.replace("{containers:", selector))
    assert set(made.on_demand) == {"head", "tpus"}
