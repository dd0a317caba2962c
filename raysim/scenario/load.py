"""``load(path)``: a scenario folder or file into a frozen ``Scenario``, or every problem at once.

Everything a run depends on is here afterwards: the scenario, the content of the user's files, and
what raysim read into them. The layer table is not built yet (``build.build_model``).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from raysim.errors import Location, Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.perf.profile import Profile
from raysim.scenario.clusters import make_cluster
from raysim.scenario.documents import Document, KeyPath, printable, shorten
from raysim.scenario.fsdp import FsdpReading, read_fsdp
from raysim.scenario.library import is_program
from raysim.scenario.machines import unsaved
from raysim.scenario.notes import defaults_taken, not_simulated, written_out
from raysim.scenario.overrides import TRAIN, Overrides
from raysim.scenario.peft import checkpoint_in_fewer_bits
from raysim.scenario.problems import problems_of
from raysim.scenario.profile import on_cluster, profile_of, without_effect
from raysim.scenario.rayjob import of_rayjob
from raysim.scenario.schema import ScenarioSection
from raysim.scenario.sources import (
    CLUSTER,
    DEEPSPEED,
    FSDP,
    MEGATRON,
    MODEL,
    PROFILE,
    Source,
    hf_config,
    read_sources,
)
from raysim.scenario.targets import METRICS, Target, Unit, targets_of
from raysim.scenario.training import Strategy, make_strategy
from raysim.scenario.yaml_text import read_yaml

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from raysim.scenario.program import ProgramScenario

FILE_NAME = "scenario.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario with everything it points to, checked."""

    file: str
    """As shown to the user."""
    folder: Path
    """Relative paths start here."""
    spec: ScenarioSection = field(repr=False)
    cluster: ClusterSpec = field(repr=False)
    strategy: Strategy = field(repr=False)
    """Mesh, batch sizes and engine settings of the training job."""
    profile: Profile | None = None
    """Constants of the cluster's machines in place of raysim's own."""
    targets: tuple[Target, ...] = ()
    notes: tuple[Problem, ...] = field(default=(), repr=False)
    """Every default taken and every value derived."""
    warnings: tuple[Problem, ...] = field(default=(), repr=False)
    """What the files say and the prediction does not have."""
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
    def metrics(self) -> Mapping[str, Unit]:
        """Names that targets may limit, and their units."""
        return METRICS

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of each user file, by its path in the scenario."""
        hashes = {} if self.spec.resolved is None else dict(self.spec.resolved.files)
        for source in self.sources.values():
            if source.path is not None:
                hashes[source.path] = source.documents[0].sha256 or ""
        return hashes

    @property
    def reference(self) -> dict[str, float]:
        """Measured metrics the prediction is compared with; empty when there are none."""
        said = self.spec.train.reference
        values = {} if said is None else said.model_dump(exclude={"source", "gpu"})
        return {name: float(value) for name, value in values.items() if value is not None}

    def with_(self, changes: Mapping[str, Any]) -> Scenario:
        """A new scenario with keys changed: ``{"train.micro_batch": 4, "cluster.nodes": 2}``.

        Raises
        ------
        ScenarioError
            A key does not exist or the changed scenario is wrong.
        """
        document, sources = Overrides(self.document, self.sources).apply(changes)
        return _scenario(document, self.folder, sources)

    def resolved(self) -> dict[str, Any]:
        """Plain data whose YAML replays this run: user files inline, defaults filled."""
        return written_out(ScenarioSection, self.document, self.sources, self.files)


AnyScenario: TypeAlias = "Scenario | ProgramScenario"


def load(
    path: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> AnyScenario:
    """Read a scenario.

    Parameters
    ----------
    path
        A folder with ``scenario.yaml``, or a YAML file; or a KubeRay RayJob's manifest. Or what
        such a file holds, as a mapping: files that it points to are those of this folder.
    changes
        Keys to change before anything is checked, as ``Scenario.with_`` takes them.

    Raises
    ------
    ScenarioError
        Anything is wrong with the scenario or a file it points to; ``problems`` has one line each.
    """
    if isinstance(path, Mapping):
        made = from_mapping(path)
        return made.with_(changes) if changes else made
    try:
        given = Path(path)
        file = given / FILE_NAME if given.is_dir() else given
        if given.is_dir() and not file.is_file():
            message = f"the folder has no {FILE_NAME}"
            raise ScenarioError(
                Problem(message=message, where=Location(file=printable(str(given))))
            )
    except (OSError, ValueError) as error:
        where = Location(file=shorten(str(path)))
        raise ScenarioError(Problem(message=f"cannot be read: {error}", where=where)) from None
    document = of_rayjob(file) or read_yaml(file, printable(str(file)))
    if changes:
        problems: list[Problem] = []
        known = read_sources(document, file.parent, {}, problems)
        if isinstance(document.data, dict):
            document, known = Overrides(document, known).apply(changes)
        return _made(document, file.parent, known)
    return _made(document, file.parent, {})


def from_mapping(data: Mapping[str, Any], *, folder: str | Path = ".") -> AnyScenario:
    """A scenario from plain data, as ``resolved()`` gives it; errors as :func:`load`."""
    document = Document(file="scenario", data=copy.deepcopy(dict(data)))
    return _made(document, Path(folder), {})


def _made(document: Document, folder: Path, known: Mapping[KeyPath, Source]) -> AnyScenario:
    """By the kind of its job."""
    made: AnyScenario
    if is_program(document):
        from raysim.scenario.program import program_scenario

        made = program_scenario(document, folder, known)
    else:
        made = _scenario(document, folder, known)
    for note in made.notes:
        logger.info("taken: %s", note)
    for warning in made.warnings:
        logger.info("warning: %s", warning)
    return made


def _scenario(document: Document, folder: Path, known: Mapping[KeyPath, Source]) -> Scenario:
    """Check a document against the schema and everything it points to."""
    problems: list[Problem] = []
    spec = _validated(document, problems)
    targets = targets_of(document, problems)
    sources = read_sources(document, folder, known, problems)
    if spec is None or problems:
        raise ScenarioError(problems)
    train = spec.train
    made = make_cluster(
        spec.cluster,
        document.child(("cluster",), "cluster"),
        list(sources[CLUSTER].documents) if CLUSTER in sources else None,
        train.workers,
    )
    if made.spec is None:
        raise ScenarioError(made.errors)
    profile = profile_of(sources[PROFILE].documents[0]) if PROFILE in sources else None
    cluster = made.spec if profile is None else on_cluster(made.spec, profile)
    config = hf_config(sources[MODEL]) if MODEL in sources else None
    deepspeed = sources[DEEPSPEED].documents[0] if DEEPSPEED in sources else None
    megatron = sources[MEGATRON].documents[0] if MEGATRON in sources else None
    strategy = make_strategy(
        train,
        document.child(TRAIN, "train"),
        cluster,
        deepspeed,
        megatron,
        config,
        _fsdp(sources),
    )
    return Scenario(
        file=document.file,
        folder=folder,
        spec=spec,
        cluster=cluster,
        strategy=strategy,
        profile=profile,
        targets=tuple(targets),
        notes=(*defaults_taken(spec, document), *made.notes, *strategy.notes),
        warnings=(
            *not_simulated(spec, document),
            *without_effect(profile, "training", document),
            *strategy.warnings,
            *unsaved(train, document.child(TRAIN, "train")),
            *_idle_gpus(strategy.mesh.world, cluster.num_gpus, document.child(TRAIN, "train")),
            *checkpoint_in_fewer_bits(
                sources[MODEL].documents[0] if MODEL in sources else None, train
            ),
        ),
        document=document,
        sources=sources,
    )


def _idle_gpus(workers: int, gpus: int, document: Document) -> Iterator[Problem]:
    """More nodes were asked for, and not more workers: the same speed at a higher price."""
    if workers < gpus:
        message = f"{workers} of the cluster's {gpus} GPUs work; the others are paid for and idle"
        yield document.problem(("workers",), message)


def _fsdp(sources: Mapping[KeyPath, Source]) -> FsdpReading | None:
    """FSDP's settings from a file of the user's, or from the scenario itself."""
    source = sources.get(FSDP)
    if source is None:
        return None
    document = source.documents[0]
    return read_fsdp(replace(document, prefix="train.fsdp") if source.path is None else document)


def _validated(document: Document, problems: list[Problem]) -> ScenarioSection | None:
    if not isinstance(document.data, dict):
        message = f"expected a mapping with cluster, model and jobs, got {shorten(document.data)}"
        problems.append(document.problem((), message))
        return None
    try:
        return ScenarioSection.model_validate(document.data)
    except ValidationError as error:
        problems += problems_of(error, document, ScenarioSection)
        return None
