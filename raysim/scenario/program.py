"""Scenarios of Ray programs: from a checked document to what is run.

``raysim run my_script.py --cluster cluster.yaml`` makes such a document of its two files.
"""

from __future__ import annotations

import hashlib
import os
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.perf.constants import TrainingConstants
from raysim.perf.profile import Profile
from raysim.perf.ray_core import RayCosts
from raysim.raycore.autoscaler import AutoscalerConfig
from raysim.raycore.config import RayConfig
from raysim.scenario.autoscaling import autoscaler_of, clouds_of, groups_misnamed, spot_of
from raysim.scenario.clusters import make_cluster
from raysim.scenario.documents import Document, KeyPath, did_you_mean, printable, value_at
from raysim.scenario.jobs import Jobs
from raysim.scenario.kuberay import fault_tolerance, is_kuberay
from raysim.scenario.notes import defaults_taken, written_out
from raysim.scenario.overrides import Overrides
from raysim.scenario.problems import problems_of
from raysim.scenario.profile import profile_of, without_effect
from raysim.scenario.rayjob import of_service
from raysim.scenario.schema import MomentSection
from raysim.scenario.schema_program import (
    FaultSection,
    ProgramSection,
)
from raysim.scenario.sources import CLUSTER, PROFILE, Source, read_sources
from raysim.scenario.stored import stored_files
from raysim.scenario.targets import Target, Unit, targets_of
from raysim.workloads.program import FaultEvent, ProgramJob

NOTICE_S = 120.0
"""Of a spot instance that is taken back: AWS gives two minutes."""
PROGRAM_METRICS: dict[str, Unit] = {
    "seconds": "seconds", "usd": "usd", "kwh": "count", "kg_co2e": "count",
}  # fmt: skip
"""Of the metrics a target may name, those that a Ray program has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramScenario:
    """A Ray program, or a workload, on a cluster, checked."""

    file: str
    folder: Path
    spec: ProgramSection = field(repr=False)
    cluster: ClusterSpec = field(repr=False)
    job: ProgramJob = field(repr=False)
    profile: Profile | None = None
    """Service times of Ray on the cluster's machines in place of raysim's own."""
    inputs: Mapping[KeyPath, Path] = field(repr=False)
    """Files of the job that are read when it runs, by the key that names them."""
    targets: tuple[Target, ...] = ()
    notes: tuple[Problem, ...] = field(default=(), repr=False)
    warnings: tuple[Problem, ...] = field(default=(), repr=False)
    document: Document = field(repr=False)
    sources: Mapping[KeyPath, Source] = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the run and its reports."""
        return self.spec.name

    @property
    def seed(self) -> int:
        """Seed of every random stream."""
        return self.spec.seed

    @property
    def saved_at(self) -> MomentSection | None:
        """Where a saved run stands; None of a scenario that is no saved run."""
        return None if self.spec.resolved is None else self.spec.resolved.moment

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """Names that targets may limit, and their units."""
        return _metrics(self.job)

    def with_(self, changes: Mapping[str, Any]) -> ProgramScenario:
        """A new scenario with keys changed.

        Raises
        ------
        ScenarioError
            A key does not exist or the changed scenario is wrong.
        """
        document, sources = Overrides(self.document, self.sources).apply(changes)
        return program_scenario(document, self.folder, sources)

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of every file the run depends on, by name or by path as written."""
        hashes = {} if self.spec.resolved is None else dict(self.spec.resolved.files)
        hashes |= {file.name: _sha256(file) for file in self.inputs.values()}
        for source in self.sources.values():
            if source.path is not None:
                hashes[source.path] = source.documents[0].sha256 or ""
        return hashes

    def resolved(self) -> dict[str, Any]:
        """Plain data that says everything the run depends on; paths as they were written."""
        return written_out(ProgramSection, self.document, self.sources, self.files)

    def resolved_in(self, folder: Path) -> dict[str, Any]:
        """The same, with paths that lead from ``folder``: its YAML there replays this run."""
        return self._placed(lambda path: os.path.relpath(path, folder))

    def identity(self) -> dict[str, Any]:
        """The same without where files are, which does not change a run: what its id is made of."""
        return self._placed(lambda path: path.name)

    def _placed(self, place: Callable[[Path], str]) -> dict[str, Any]:
        data = self.resolved()
        for job in data["jobs"]:
            for key in ("script", "rayjob"):
                if isinstance(job.get(key), str):
                    job[key] = {"path": job[key]}
        for path, file in self.inputs.items():
            value_at(data, path[:-1])[path[-1]] = place(file)
        return data


def program_scenario(
    document: Document, folder: Path, known: Mapping[KeyPath, Source]
) -> ProgramScenario:
    """Check a document and everything it points to.

    Raises
    ------
    ScenarioError
        Anything is wrong; one problem each.
    """
    problems: list[Problem] = []
    try:
        spec = ProgramSection.model_validate(document.data)
    except ValidationError as error:
        problems += problems_of(error, document, ProgramSection)
        spec = None
    sources = read_sources(document, folder, known, problems)
    if spec is None or problems:
        raise ScenarioError(problems)
    made = make_cluster(
        spec.cluster,
        document.child(("cluster",), "cluster"),
        list(sources[CLUSTER].documents) if CLUSTER in sources else None,
        None,
    )
    problems += made.errors
    files = sources[CLUSTER].documents if CLUSTER in sources else ()
    config = _config(spec, fault_tolerance(files), document, problems)
    if made.spec is not None:
        most = sum(max(g.count, g.max_count or 0) for g in made.spec.groups)
        problems += _misplaced(spec.faults, most, document)
        problems += groups_misnamed(spec, made.spec, document)
    inputs: dict[KeyPath, Path] = {}
    what = Jobs(folder, document, inputs, problems).read(spec.jobs) | {
        "files": stored_files(spec.files, document, problems)
    }
    if made.spec is None or problems:
        raise ScenarioError(problems)
    profile = profile_of(sources[PROFILE].documents[0]) if PROFILE in sources else None
    job = ProgramJob(
        **what,
        node_speed=spec.ray.node_speed,
        config=config,
        costs=RayCosts() if profile is None else profile.ray_costs(),
        training=TrainingConstants() if profile is None else profile.training_constants(),
        autoscaling=_autoscaling(spec, made.spec, files),
        clouds=clouds_of(spec, made.spec, files),
        spot=spot_of(spec),
        kuberay=any(is_kuberay(d) for d in files),
        object_store_bytes=spec.ray.object_store_memory,
        faults=tuple(_event(f) for f in spec.faults),
        until_s=spec.until, steps=spec.steps,
    )  # fmt: skip
    targets = targets_of(document, problems, _metrics(job))
    if problems:
        raise ScenarioError(problems)
    return ProgramScenario(
        file=document.file,
        folder=folder,
        spec=spec,
        cluster=made.spec,
        job=job,
        inputs=inputs,
        profile=profile,
        targets=tuple(targets),
        notes=(*defaults_taken(spec, document), *made.notes, *of_service(files)),
        warnings=(*without_effect(profile, "ray", document), *made.unsaid(spec.spot)),
        document=document,
        sources=sources,
    )


def _autoscaling(
    spec: ProgramSection, cluster: ClusterSpec, files: Sequence[Document]
) -> AutoscalerConfig | None:
    """The file's, whose total gives way where the scenario says how many nodes a group has."""
    resized = any(h.replicas or h.max_replicas for h in spec.cluster.hardware.values())
    version, kept = spec.ray.autoscaler, bool(spec.spot)
    return autoscaler_of(cluster, files, version, kept=kept, resized=resized)


def _metrics(job: ProgramJob) -> Mapping[str, Unit]:
    """Of a program, and those that one of its jobs has and no other: whose is known."""
    found = [job.library, *(s.library for s in job.submissions)]
    each = [cast("Mapping[str, Unit]", x.metrics) for x in found if x is not None]
    times = Counter(name for own in each for name in own)
    own = {name: unit for own in each for name, unit in own.items() if times[name] == 1}
    return {**PROGRAM_METRICS, **own}


def _config(
    spec: ProgramSection, given: Mapping[str, Any], document: Document, problems: list[Problem]
) -> RayConfig:
    """Ray's settings, by name; ``RAY_`` before a name is allowed, as in the environment."""
    types = typing.get_type_hints(RayConfig)
    values = dict(given)
    for key, value in spec.ray.config.items():
        name = key.removeprefix("RAY_")
        where: KeyPath = ("ray", "config", key)
        if name not in types:
            hint = did_you_mean(name, [f.name for f in fields(RayConfig)])
            message = f"Ray's setting {printable(name)!r} is unknown or not modelled{hint}"
            problems.append(document.problem(where, message, key=True))
        elif (
            not isinstance(value, (types[name], int))
            or isinstance(value, bool) != (types[name] is bool)
            or (types[name] is str and not isinstance(value, str))
        ):
            problems.append(document.problem(where, f"expected {types[name].__name__}"))
        else:
            values[name] = value
    return RayConfig(**values)


def _misplaced(faults: list[FaultSection], nodes: int, document: Document) -> Iterator[Problem]:
    for i, fault in enumerate(faults):
        at = getattr(fault, fault.kind)
        if fault.kind != "kill_gcs" and at >= nodes:
            message = f"there is no node {at}: the cluster has {nodes}, counted from 0"
            yield document.problem(("faults", i, fault.kind), message)


def _event(fault: FaultSection) -> FaultEvent:
    return FaultEvent(
        at_s=fault.at,
        kind=fault.kind,
        node_id=-1 if fault.kind == "kill_gcs" else getattr(fault, fault.kind),
        notice_s=NOTICE_S if fault.notice is None else fault.notice,
        share=fault.share,
        restart_after_s=fault.restart_after,
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
