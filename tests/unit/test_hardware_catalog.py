"""The hardware catalog: every number says where it is from, and the numbers hang together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import CpuRankSpec, GpuSpec, NodeSpec
from raysim.units import GIB, MIB

FOLDER = Path(catalog.__file__).with_name("catalog")
SPEC_FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "sources.yaml")
KINDS = ("gpu", "nic", "disk", "object_storage", "cpu", "node")
WORDS = {  # fields that name a kind of thing and are no numbers
    "vendor", "architecture", "scale_up", "kind", "rdma", "provider", "cpu", "gpu", "gpu_fabric",
    "price_note", "aliases", "columns", "basis", "sources", "rows",
}  # fmt: skip
GPUS = [g for g in map(catalog.gpu, catalog.names("gpu")) if not isinstance(g, CpuRankSpec)]
NODES = [catalog.node(name) for name in catalog.names("node")]


def by_name(spec):
    return spec.name


def raw(path):
    """A file as a YAML library reads it, every scalar as text."""
    return YAML(typ="base", pure=True).load(path.read_text()) or {}


@pytest.fixture(scope="module")
def sources():
    return raw(FOLDER / "sources.yaml")


@pytest.fixture(scope="module", params=SPEC_FILES, ids=by_name)
def document(request):
    return raw(request.param)


def test_every_number_in_every_file_has_a_basis_and_a_source(document, sources):
    for name, record in document.items():
        for field, entry in record.items():
            if field not in WORDS:
                assert len(entry) == 3, f"{name}.{field}: want [value, basis, source], got {entry}"
                assert entry[1] in {"measured", "datasheet", "assumed"}, f"{name}.{field}"
                assert sources[entry[2]].strip(), f"{name}.{field}"
        if "rows" in record:
            assert set(record["basis"]) <= {"measured", "datasheet", "assumed"}, name
            assert all(sources[source].strip() for source in record["sources"]), name
            widths = {len(cells) for cells in record["rows"].values()}
            heads = {len(record[key]) for key in ("columns", "basis", "sources")}
            assert widths == heads, f"{name}: rows and column heads differ in length"
        else:
            assert not {"columns", "basis", "sources"} & record.keys(), name


def test_no_word_field_hides_a_number(document):
    for name, record in document.items():
        for field in WORDS & record.keys() - {"price_note", "cpu", "gpu", "aliases"}:
            if isinstance(record[field], str):
                assert not re.search(r"\d", record[field].replace("cdna3", "")), f"{name}.{field}"


def test_every_source_is_used(sources):
    used = "\n".join(path.read_text() for path in SPEC_FILES)
    words = set(re.findall(r"[\w.-]+", used))
    assert [name for name in sources if name not in words] == []


def test_own_reader_agrees_with_a_yaml_library():
    for path in SPEC_FILES:
        blocks = catalog._blocks(path.name)
        document = raw(path)
        assert list(blocks) == list(document)
        for name, expected in document.items():
            rows = {m[1]: catalog._words(m[2]) for m in catalog._ROW.finditer(blocks[name])}
            assert rows == expected.pop("rows", {}), name
            record = catalog._record(blocks[name])
            record.pop("rows:", None)
            assert record == dict(expected), name
    for name, text in raw(FOLDER / "sources.yaml").items():
        assert catalog._source(name) == text


def test_names_and_aliases_are_unique_across_files():
    for kind in KINDS:
        names = catalog.names(kind)
        assert len({name.lower() for name in names}) == len(names)
        assert len(catalog._aliases(kind)) >= len(names)  # asserts inside that no alias is shared


@pytest.mark.parametrize("kind", KINDS)
def test_every_spec_builds_and_carries_the_provenance_of_each_number(kind):
    for name in catalog.names(kind):
        spec = getattr(catalog, kind)(name)
        assert spec.name == name
        for row in catalog.provenance_rows([spec]):
            assert row.basis in {"measured", "datasheet", "assumed"}
            assert row.source
            assert row.value is not None, row
    numeric = {"sm_count", "tdp_w", "flops_per_s.fp16", "memory_bytes", "pcie_bytes_per_s"}
    assert all(numeric <= spec.provenance.keys() for spec in GPUS)


# Hand-typed from the vendors' datasheets, not from the files under test.
DATASHEET = [
    # NVIDIA H100 Tensor Core GPU architecture whitepaper v1.04, table 3 (dense)
    ("H100-SXM-80GB", {"bf16": 989.4e12, "fp8": 1978.9e12, "fp32": 66.9e12}, 3.35e12, 450e9, 700),
    # NVIDIA A100 80GB datasheet, May 2022: 312 TFLOPS bf16, 2039 GB/s, NVLink 600 GB/s both ways
    ("A100-SXM-80GB", {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}, 2.039e12, 300e9, 400),
    # NVIDIA H200 datasheet: 1979 TFLOPS bf16 with sparsity, 4.8 TB/s, NVLink 900 GB/s both ways
    ("H200-SXM-141GB", {"bf16": 1979e12 / 2, "fp8": 3958e12 / 2}, 4.8e12, 450e9, 700),
    # NVIDIA V100 datasheet, January 2020: 125 TFLOPS tensor, 900 GB/s, NVLink 300 GB/s both ways
    ("V100-SXM2-16GB", {"fp16": 125e12, "fp32": 15.7e12}, 900e9, 150e9, 300),
    # NVIDIA DGX B200 datasheet: 72 PFLOPS fp8 with sparsity and 64 TB/s over 8 GPUs
    ("B200", {"fp8": 72e15 / 8 / 2, "bf16": 36e15 / 8 / 2}, 64e12 / 8, 900e9, 1000),
    # AMD Instinct MI300X datasheet: 1307.4 TFLOPS bf16, 5.3 TB/s, 750 W
    ("MI300X", {"bf16": 1307.4e12, "fp8": 2614.9e12}, 5.3e12, 448e9, 750),
    # NVIDIA T4 datasheet: 65 TFLOPS fp16, 320+ GB/s, 70 W
    ("T4", {"fp16": 65e12, "fp32": 8.1e12}, 320e9, 0, 70),
]


@pytest.mark.parametrize(("name", "flops", "memory", "scale_up", "tdp_w"), DATASHEET)
def test_gpu_equals_its_datasheet(name, flops, memory, scale_up, tdp_w):
    gpu = catalog.gpu(name)
    for dtype, peak in flops.items():
        assert gpu.flops_per_s[dtype] == pytest.approx(peak, rel=1e-3)
    assert gpu.memory_bytes_per_s == pytest.approx(memory, rel=1e-3)
    assert gpu.scale_up_bytes_per_s == pytest.approx(scale_up)
    assert gpu.tdp_w == tdp_w


@pytest.mark.parametrize("gpu", GPUS, ids=by_name)
def test_gpu_peaks_grow_as_precision_shrinks(gpu: GpuSpec):
    peaks = [gpu.flops_per_s[d] for d in ("fp32", "tf32", "fp16", "fp8", "fp4")
             if d in gpu.flops_per_s]  # fmt: skip
    assert peaks == sorted(peaks)
    assert gpu.flops_per_s.get("bf16", gpu.flops_per_s["fp16"]) == gpu.flops_per_s["fp16"]
    assert ("bf16" in gpu.flops_per_s) == (gpu.architecture not in {"volta", "turing"})
    assert ("fp8" in gpu.flops_per_s) == (gpu.compute_capability >= 8.9)


# Per link and direction: NVLink 2, 3 and 4 carry 25 GB/s, NVLink 5 carries 50, xGMI 64.
LINK = {("nvlink", 2): 25e9, ("nvlink", 3): 25e9, ("nvlink", 4): 25e9, ("nvlink", 5): 50e9,
        ("xgmi", 4): 64e9}  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS, ids=by_name)
def test_gpu_links_and_memory_are_physical(gpu: GpuSpec):
    if gpu.scale_up:
        link = LINK[gpu.scale_up, gpu.scale_up_generation]
        assert gpu.scale_up_bytes_per_s == gpu.scale_up_links * link
    else:
        assert gpu.scale_up_links == gpu.scale_up_bytes_per_s == 0
    # What CUDA reports is a little under the capacity in the name, which is in GB or GiB.
    sold = re.search(r"(\d+)GB$", gpu.name)
    if sold:
        assert 0.97 < gpu.memory_bytes / (int(sold[1]) * 2**30) <= 1.0
    line_rate = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 126e9}[gpu.pcie_generation]
    if "GB" not in gpu.name[:2]:  # Grace superchips copy over NVLink-C2C
        assert 0.4 * line_rate < gpu.pcie_bytes_per_s < line_rate
    assert 256 * MIB < gpu.context_bytes < 2 * GIB


@pytest.mark.parametrize("node", NODES, ids=by_name)
def test_node_hangs_together(node: NodeSpec):
    assert bool(node.gpu) == bool(node.gpu_count) == bool(node.gpu_fabric)
    assert node.cpu.cores * 2 >= node.vcpus >= node.cpu.cores
    assert node.disks
    assert 0.5 * GIB < node.memory_bytes / node.vcpus < 40 * GIB
    if node.usd_per_hour is not None:
        assert node.price_note
    if node.gpu and node.usd_per_hour:
        dear = node.gpu.architecture in {"hopper", "blackwell"}
        assert 0.2 < node.usd_per_hour / node.gpu_count < (18 if dear else 8)
    elif node.usd_per_hour:
        assert 0.02 < node.usd_per_hour / node.vcpus < 0.2
    if node.gpu and node.gpu_fabric == "nvswitch":
        assert node.gpu.scale_up == "nvlink"


def test_node_slices_its_host():
    host = catalog.cpu("2x-xeon-8259cl")
    part = catalog.node("g4dn.12xlarge").cpu  # 48 of 96 hardware threads
    assert (host.cores, part.cores, part.sockets) == (48, 24, 1)
    assert part.memory_bytes_per_s == pytest.approx(host.memory_bytes_per_s / 2)
    assert catalog.node("g4dn.metal").cpu is host
    assert catalog.node("Standard_ND96asr_v4").cpu.cores == 96  # one vCPU is one core there


@pytest.mark.parametrize(
    ("name", "gpus", "gpu", "per_node_gbit_s", "usd"),
    [
        # AWS: P4d is 400 Gb/s, P5 is 3200 Gb/s; Azure ND v4 is 1600 Gb/s, ND H100 v5 is 3200 Gb/s.
        ("p4d.24xlarge", 8, "A100-SXM-40GB", 400, 21.957642),
        ("p5.48xlarge", 8, "H100-SXM-80GB", 3200, 55.04),
        ("p5en.48xlarge", 8, "H200-SXM-141GB", 3200, 63.296),
        ("p6-b200.48xlarge", 8, "B200", 3200, 113.9328),
        ("Standard_ND96amsr_A100_v4", 8, "A100-SXM-80GB", 1600, 32.7702),
        ("Standard_ND96isr_H100_v5", 8, "H100-SXM-80GB", 3200, 98.32),
        ("a3-highgpu-8g", 8, "H100-SXM-80GB", 800, 88.49),
        ("a3-ultragpu-8g", 8, "H200-SXM-141GB", 3200, 84.807),
        ("dgx-a100-80-8", 8, "A100-SXM-80GB", 1600, None),
        ("dgx-v100-32-8", 8, "V100-SXM2-32GB", 400, None),
        ("gb200-nvl72", 4, "GB200", 1600, None),
        ("g4dn.12xlarge", 4, "T4", 50, 3.912),
        ("g5.48xlarge", 8, "A10G", 100, 16.288),
    ],
)
def test_well_known_nodes(name, gpus, gpu, per_node_gbit_s, usd):
    node = catalog.node(name)
    assert node.gpu is catalog.gpu(gpu)
    assert node.gpu_count == gpus
    assert node.nic.bytes_per_s * node.nic_count * 8 / 1e9 == pytest.approx(per_node_gbit_s)
    if usd is not None:
        assert node.usd_per_hour == usd
    assert node.nvlink_domain == (72 if "nvl72" in name else 0)


REQUIRED = {
    "gpu": """V100-SXM2-16GB V100-SXM2-32GB V100-PCIe-16GB T4 A10G A10 L4 L40S A100-SXM-40GB
        A100-SXM-80GB A100-PCIe-80GB H100-SXM-80GB H100-PCIe-80GB H100-NVL-94GB H200-SXM-141GB
        B200 B300 GB200 GB300 MI300X RTX-3090 RTX-4090 RTX-5090 RTX-A6000 RTX-6000-Ada RTX-PRO-6000
        A40 L40""",
    "nic": """ethernet-10 ethernet-25 ethernet-50 ethernet-100 ethernet-200 ethernet-400 ib-edr-100
        ib-hdr-200 ib-ndr-400 ib-xdr-800 roce-400 efa-v1-100 efa-v2-200 efa-v2-400 gcp-tcpx-200
        gcp-tcpxo-200 azure-ndr""",
    "disk": "ebs-gp3 ebs-io2 gcp-local-ssd gcp-pd-ssd azure-temp-nvme nvme-gen4 nvme-gen5 hdd",
    "object_storage": "s3 gcs azure-blob",
    "node": """m5.large m6i.32xlarge m7i.48xlarge r5.24xlarge r6i.large c5.18xlarge c6i.8xlarge
        i3en.24xlarge i4i.32xlarge g4dn.xlarge g4dn.12xlarge g5.12xlarge g5.48xlarge g6.48xlarge
        g6e.48xlarge p3.2xlarge p3.8xlarge p3.16xlarge p3dn.24xlarge p4d.24xlarge p4de.24xlarge
        p5.48xlarge p5e.48xlarge p5en.48xlarge p6-b200.48xlarge a2-highgpu-1g a2-highgpu-8g
        a2-megagpu-16g a2-ultragpu-1g a2-ultragpu-8g a3-highgpu-8g a3-megagpu-8g a3-ultragpu-8g
        g2-standard-4 g2-standard-96 n1-standard-8 n2-standard-128 Standard_ND96asr_v4
        Standard_ND96amsr_A100_v4 Standard_ND96isr_H100_v5 Standard_ND96isr_H200_v5
        Standard_NC24ads_A100_v4 Standard_NC96ads_A100_v4 Standard_NC40ads_H100_v5
        Standard_D32s_v5 hgx-h100-8 hgx-h200-8 hgx-b200-8 dgx-a100-80-8 dgx-a100-40-8
        dgx-v100-16-8 dgx-v100-32-8 dgx-1-v100 gb200-nvl72 mi300x-8 cpu-16 cpu-32 cpu-64 t4-4
        l40s-8""",
}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, words in REQUIRED.items() for name in words.split()]
)
def test_required_names_are_there(kind, name):
    assert getattr(catalog, kind)(name).name


def test_aliases_and_case_give_one_object():
    assert catalog.gpu("h100") is catalog.gpu("H100-SXM-80GB") is catalog.gpu("H100-sxm-80gb")
    assert catalog.node("dgx-h100") is catalog.node("HGX-H100-8")
    assert catalog.nic("ndr") is catalog.node("hgx-h100-8").nic


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("gpu", "H100-SXM-80", "H100-SXM-80GB"),
        ("node", "p5.48xlage", "p5.48xlarge"),
        ("node", "Standard_ND96isr_H100_v4", "Standard_ND96isr_H100_v5"),
        ("nic", "ib-ndr-40", "ib-ndr-400"),
        ("disk", "ebs-gp2", "ebs-gp3"),
        ("cpu", "xeon-8480c", "2x-xeon-8480c"),
        ("object_storage", "gcss", "gcs"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(kind, wrong, right):
    with pytest.raises(ScenarioError) as error:
        getattr(catalog, kind)(wrong)
    message = str(error.value)
    assert repr(wrong) in message
    assert right in message
    assert "\n" not in message


def test_unknown_kind_is_refused():
    with pytest.raises(ScenarioError, match="one of gpu, nic"):
        catalog.names("gpus")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ("H100-SXM-80GB", "H100"), ("A100-SXM-40GB", "A100"), ("V100-PCIe-16GB", "V100"),
        ("T4", "T4"), ("A10G", "A10G"), ("L40S", "L40S"), ("H200-SXM-141GB", "H200"),
        ("GB200", "GB200"), ("MI300X", "AMD-Instinct-MI300X-OAM"),
        ("RTX-4090", "GeForce-RTX-4090"), ("RTX-A6000", "RTX-A6000"), ("A40", "A40"),
        ("RTX-6000-Ada", "RTX-6000"), ("RTX-PRO-6000", "RTX-PRO-6000"),
    ],
)  # fmt: skip
def test_a_node_offers_the_accelerator_type_that_ray_would_find(gpu: str, found: str) -> None:
    assert catalog.gpu(gpu).accelerator_type == found


@pytest.mark.parametrize(
    ("accelerator_type", "name"),
    [
        # ray.util.accelerators: constants by name and by value
        ("NVIDIA_TESLA_V100", "V100-SXM2-16GB"), ("V100", "V100-SXM2-16GB"),
        ("NVIDIA_TESLA_T4", "T4"), ("T4", "T4"), ("NVIDIA_TESLA_A10G", "A10G"), ("A10G", "A10G"),
        ("NVIDIA_L4", "L4"), ("NVIDIA_L40S", "L40S"), ("NVIDIA_A100", "A100-SXM-80GB"),
        ("NVIDIA_A100_40G", "A100-SXM-40GB"), ("A100-40G", "A100-SXM-40GB"),
        ("A100-80G", "A100-SXM-80GB"), ("NVIDIA_H100", "H100-SXM-80GB"), ("H200", "H200-SXM-141GB"),
        ("NVIDIA_B200", "B200"), ("NVIDIA_GB300", "GB300"), ("AMD-Instinct-MI300X-OAM", "MI300X"),
        ("accelerator_type:H100", "H100-SXM-80GB"),
        # GKE node labels
        ("nvidia-tesla-v100", "V100-SXM2-16GB"), ("nvidia-tesla-t4", "T4"), ("nvidia-l4", "L4"),
        ("nvidia-tesla-a100", "A100-SXM-40GB"), ("nvidia-a100-80gb", "A100-SXM-80GB"),
        ("nvidia-h100-80gb", "H100-SXM-80GB"), ("nvidia-h100-mega-80gb", "H100-SXM-80GB"),
        ("nvidia-h200-141gb", "H200-SXM-141GB"), ("nvidia-b200", "B200"),
        # device names, as nvidia-smi and the NVIDIA device plugin give them
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"), ("NVIDIA-A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"), ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("Tesla T4", "T4"), ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"), ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
    ],
)  # fmt: skip
def test_accelerator_types(accelerator_type, name):
    assert catalog.gpu_from_accelerator_type(accelerator_type).name == name


def test_unknown_accelerator_type_is_refused():
    with pytest.raises(ScenarioError, match="TPU-V4"):
        catalog.gpu_from_accelerator_type("TPU-V4")


def test_provenance_rows_list_a_node_and_its_parts_once():
    node = catalog.node("hgx-h100-8")
    rows = catalog.provenance_rows([node, node, catalog.gpu("h100")])
    assert len(rows) == len(set(rows))
    assert {row.spec for row in rows} == {
        "hgx-h100-8", "H100-SXM-80GB", "ib-ndr-400", "ethernet-100", "nvme-gen4", "2x-xeon-8480c",
    }  # fmt: skip
    row = next(r for r in rows if (r.spec, r.field) == ("H100-SXM-80GB", "flops_per_s.bf16"))
    assert (row.value, row.basis) == (989.4e12, "datasheet")
    assert "H100" in row.source


COLD = """
import hashlib
from raysim.hardware import catalog
kinds = ("gpu", "nic", "disk", "object_storage", "cpu", "node")
specs = [getattr(catalog, kind)(name) for kind in kinds for name in catalog.names(kind)]
rows = repr((specs, catalog.provenance_rows(specs)))
print(hashlib.sha256(rows.encode()).hexdigest())
"""


def test_reading_does_not_depend_on_the_hash_seed():
    digests = {
        subprocess.run(
            [sys.executable, "-c", COLD], env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "42")
        for root in [str(FOLDER.parents[2])]
    }  # fmt: skip
    assert len(digests) == 1
