"""Published rates of picture models that train or answer, beside scripts that do the same here.

``validation/data/published/pictures.json``: timm's training table of one RTX 3090, its inference
tables of an RTX 3090, 4090 and 5090, Lambda's ResNet-50 on one and several GPUs of eleven kinds,
NVIDIA's DeepLearningExamples on A100 and V100. ``workloads/training/pictures/{classify,answer}.py``
make each model (timm's, of today), its batch, format and precision, and really run, on virtual
time. Needs torch and timm.

Three rows of the RTX 3090, marked calibration, fixed how far gaming cards exceed their datasheet
(``perf/borrowed.py``); no other row fixed anything.

Simplified: no loader of pictures; DeepLearningExamples' own optimizers and regularisers are SGD.
The software of 2021 to 2023 is priced as that of today.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.specs import GpuSpec
from raysim.perf.constants import TrainingConstants
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, memory_point
from raysim.validate.scripts import played as ran

FILE = "pictures.json"
FAMILY = "pictures"
WHERE = Path("workloads/training/pictures")
STEPS = 4


def picture_points(validation: Path) -> Iterator[Point]:
    """Pictures per second of each row, and that none ran out of memory."""
    rows = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))["rows"]
    if find_spec("timm") is None:
        yield from (_left(row, "timm is not installed") for row in rows)
        return
    for row in rows:
        yield from _points(row, validation / WHERE)


def _points(row: Mapping[str, Any], scripts: Path) -> Iterator[Point]:
    gpu = catalog.gpu(row["gpu"])
    try:
        said = played(row, scripts, gpu)
    except RuntimeError as error:  # what torch's is too, and the report may be read without it
        if type(error).__name__ != "OutOfMemoryError":
            raise
        said = played(row, scripts, replace(gpu, memory_bytes=2 * gpu.memory_bytes))
    name = row["id"]
    yield Point(
        family=_family(row), name=name, role=row.get("role", "validation"), unit="images/s",
        measured=row["images_per_s"], predicted=row["batch"] * row["gpus"] / _seconds(said),
    )  # fmt: skip
    yield memory_point(FAMILY, name, said["gpu_mem_peak_bytes"], gpu)


def _seconds(said: Mapping[str, float]) -> float:
    """Of a step, or of a forward, whose kernels wait for nothing."""
    if "step_seconds" in said:
        return said["step_seconds"]
    return said["gpu_kernel_seconds"] / said["gpu_forwards"]


def played(row: Mapping[str, Any], scripts: Path, gpu: GpuSpec) -> Mapping[str, float]:
    """What the script's report says on one node with such GPUs."""
    words = [row["model"], f"--batch={row['batch']}", f"--size={row['size']}", f"--steps={STEPS}"]
    words += ["--channels-last"] * row["channels_last"]
    if row["source"] == "answers":
        words = ["answer.py", *words]
    else:
        words = ["classify.py", *words, f"--precision={row['precision']}"]
    start = ["python"] if row["gpus"] == 1 else ["torchrun", f"--nproc-per-node={row['gpus']}"]
    cluster = _machine(gpu, row["gpus"])
    return ran([*start, *words], scripts, cluster, TrainingConstants()).metrics


def _machine(gpu: GpuSpec, count: int) -> ClusterSpec:
    """A node of the catalog that has such GPUs, or else such a slot."""
    known = [n for n in map(catalog.node, catalog.names("node")) if n.gpu is not None]
    same = [n for n in known if n.gpu is not None and n.gpu.name == gpu.name]
    fits = [n for n in same if n.gpu_count >= count] or same or known[:1]
    node = replace(fits[0], gpu=gpu, gpu_count=count)
    return ClusterSpec(groups=(NodeGroup(name="gpu", node=node, count=1),))


def _family(row: Mapping[str, Any]) -> str:
    if row["source"] == "answers":
        return f"{FAMILY}/answers_{row['gpu'].lower().replace('-', '')}"
    if row["source"] != "timm":
        return f"{FAMILY}/{row['source']}"
    return f"{FAMILY}/timm_{'last' if row['channels_last'] else 'first'}"


def _left(row: Mapping[str, Any], why: str) -> Point:
    return Point(
        family=_family(row), name=row["id"], role=row.get("role", "validation"), left_out=why
    )
