"""What can be validated: workload files, and published runs; all of it, or some by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.errors import ScenarioError
from raysim.measure.workload import Workload, find
from raysim.perf.profile import Profile
from raysim.validate.automodel import automodel_points
from raysim.validate.b200 import b200_points
from raysim.validate.gpu_steps import gpu_step_points
from raysim.validate.intern_evo import intern_points
from raysim.validate.litgpt import litgpt_points
from raysim.validate.megatron_sc21 import sc21_points
from raysim.validate.memory_published import allocated_points, total_points
from raysim.validate.model_states import model_state_points
from raysim.validate.nemo import dgx_cloud_points, mlperf_points, nemo_long_points, nemo_points
from raysim.validate.olmo_core import olmo_points
from raysim.validate.pictures import picture_points
from raysim.validate.points import Point, merged, read_points, rounded, write_points
from raysim.validate.published import memory_points, mpt_points
from raysim.validate.qwen_finetuning import qwen_points
from raysim.validate.ray_data import ray_data_points
from raysim.validate.ray_published import ray_published_points
from raysim.validate.ray_serve import ray_serve_points
from raysim.validate.ray_train import ray_train_points
from raysim.validate.ray_tune import ray_tune_points
from raysim.validate.replayed import Against, replayed_points
from raysim.validate.runs import run_points
from raysim.validate.scripts import script_points
from raysim.validate.serving import serving_points
from raysim.validate.torch_memory import torch_memory_points
from raysim.validate.torchtune import torchtune_points
from raysim.validate.training_cases import training_points
from raysim.validate.vllm_bench import vllm_bench_points
from raysim.validate.vtrain import vtrain_points

COMPARED = "compared"
"""Folder, under ``validation``, of what was compared last: one CSV per case."""
Told = Callable[[str], None]
PUBLISHED: dict[str, Callable[[Path], Iterator[Point]]] = {
    "mpt": mpt_points,
    "memory_52b": memory_points,
    "memory_total": total_points,
    "memory_zero3": allocated_points,
    "vtrain": vtrain_points,
    "b200": b200_points,
    "sc21": sc21_points,
    "runs": run_points,
    "qwen_finetuning": qwen_points,
    "intern_evo": intern_points,
    "litgpt": litgpt_points,
    "torchtune": torchtune_points,
    "automodel": automodel_points,
    "dgx_cloud": dgx_cloud_points,
    "nemo_h100": nemo_points,
    "nemo_long": nemo_long_points,
    "mlperf_training": mlperf_points,
    "olmo_core": olmo_points,
    "model_states": model_state_points,
    "ray_published": ray_published_points,
    "ray_data": ray_data_points,
    "ray_serve": ray_serve_points,
    "ray_train": ray_train_points,
    "ray_tune": ray_tune_points,
    "serving": serving_points,
    "vllm_bench": vllm_bench_points,
    "training": training_points,
    "torch_memory": torch_memory_points,
    "gpu_steps": gpu_step_points,
    "scripts": script_points,
    "pictures": picture_points,
}
"""Cases that are measured already, and on machines that a profile says nothing about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The cases that somebody named."""

    published: tuple[str, ...]
    workloads: tuple[Workload, ...]


def choose(cases: Sequence[str], validation: Path) -> Chosen:
    """Cases by name: a published one, a folder or a part of the name of workloads; () means all.

    Raises
    ------
    ScenarioError
        A name fits nothing.
    """
    named = [case for case in cases if case not in PUBLISHED]
    published = tuple(case for case in PUBLISHED if not cases or case in cases)
    try:
        workloads = find(named, validation / "workloads") if named or not cases else []
    except ScenarioError as error:
        raise ScenarioError(f"{error} Published cases are {', '.join(PUBLISHED)}") from None
    return Chosen(published=published, workloads=tuple(workloads))


def compare(
    chosen: Chosen,
    validation: Path,
    *,
    against: Mapping[str, Against],
    profile: Profile | None = None,
    told: Told = lambda _: None,
) -> list[Point]:
    """Predict every row of the chosen cases.

    Parameters
    ----------
    chosen
        From ``choose``.
    validation
        The folder with ``data``, ``programs`` and ``workloads``.
    against
        Data folder of the workloads' rows, by their family.
    profile
        Constants of that machine, by default the folder's own; published rows, of other machines,
        are not touched by it.
    told
        Hears what is being predicted.
    """
    points: list[Point] = []
    for family, folder in against.items():
        mine = [w for w in chosen.workloads if w.family == family]
        points += replayed_points(mine, folder, profile or folder.profile(), told)
    for case in chosen.published:
        told(case)
        points += PUBLISHED[case](validation)
    return [rounded(p) for p in points]


def keep(points: Iterable[Point], folder: Path) -> list[Point]:
    """Put points among those compared before, one CSV per case; all there are, by case."""
    by_case: dict[str, list[Point]] = {}
    for p in points:
        by_case.setdefault(p.family.partition("/")[0], []).append(p)
    for case, new in by_case.items():
        path = folder / f"{case}.csv"
        write_points(merged(read_points(path), new), path)
    return [p for path in sorted(folder.glob("*.csv")) for p in read_points(path)]
