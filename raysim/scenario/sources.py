"""The user files a scenario points to, each read once and kept with its positions and hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.accelerate_deepspeed import read_deepspeed_file
from raysim.scenario.anyscale import read_cluster_file
from raysim.scenario.arguments import read_arguments
from raysim.scenario.documents import Document, KeyPath, read_text, value_at
from raysim.scenario.hjson_text import MAX_BYTES, parse_hjson
from raysim.scenario.yaml_text import read_yaml

if TYPE_CHECKING:
    from raysim.models.config import HfConfig

CLUSTER: KeyPath = ("cluster", "from")
MODEL: KeyPath = ("model", "from")
DEEPSPEED: KeyPath = ("jobs", 0, "train", "deepspeed")
FSDP: KeyPath = ("jobs", 0, "train", "fsdp")
MEGATRON: KeyPath = ("jobs", 0, "train", "megatron")
PEFT: KeyPath = ("jobs", 0, "train", "peft")
PROFILE: KeyPath = ("profile",)
SLOTS = (CLUSTER, MODEL, DEEPSPEED, FSDP, MEGATRON, PEFT, PROFILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What stands in one slot: documents of a file, or of an inline mapping."""

    path: str | None
    """As written in the scenario; None: inline."""
    documents: tuple[Document, ...]

    @property
    def content(self) -> Any:
        """Plain data: one mapping, or a list of them."""
        if len(self.documents) == 1:
            return self.documents[0].data
        return [document.data for document in self.documents]


def read_sources(
    scenario: Document, folder: Path, known: Mapping[KeyPath, Source], problems: list[Problem]
) -> dict[KeyPath, Source]:
    """Every slot that is filled; files already in ``known`` are not read again."""
    found: dict[KeyPath, Source] = {}
    for slot in SLOTS:
        value = value_at(scenario.data, slot)
        if isinstance(value, (dict, list)):
            found[slot] = _inline(scenario, slot, value)
        elif isinstance(value, str) and value.strip() and value.isprintable():
            kept = known.get(slot)
            if kept is not None and kept.path == value:
                found[slot] = kept
                continue
            try:
                documents = _read(slot, folder / value, _shown(folder, value))
                found[slot] = Source(path=value, documents=documents)
            except ScenarioError as error:
                problems += [_at_its_mention(p, scenario, slot) for p in error.problems]
    return found


def _at_its_mention(problem: Problem, scenario: Document, slot: KeyPath) -> Problem:
    """A problem with a file as a whole stands where the scenario names the file."""
    if problem.where is not None and problem.where.line is not None:
        return problem
    return scenario.problem(slot, f"{problem.where}: {problem.message}")


def _shown(folder: Path, value: str) -> str:
    """The file's path as the user sees it from where the command runs."""
    return str(folder / value)


def _inline(scenario: Document, slot: KeyPath, value: Any) -> Source:
    """Content written in the scenario itself."""
    if isinstance(value, list):
        parts = tuple(scenario.child((*slot, i)) for i in range(len(value)))
        return Source(path=None, documents=parts)
    return Source(path=None, documents=(scenario.child(slot),))


def _read(slot: KeyPath, path: Path, shown: str) -> tuple[Document, ...]:
    """The documents of a file, by what the slot holds."""
    if slot == CLUSTER:
        documents = read_cluster_file(path, shown)
        if not documents:
            raise ScenarioError(Document(file=shown, data=None).problem((), "is empty"))
        return tuple(documents)
    if slot == MEGATRON and path.suffix not in (".yaml", ".yml", ".json"):
        return (read_arguments(path, shown),)
    if slot in (FSDP, MEGATRON, PEFT, PROFILE):
        return (read_yaml(path, shown),)
    return (_model_config(path, shown) if slot == MODEL else read_deepspeed_file(path, shown),)


def _model_config(path: Path, shown: str) -> Document:
    """A Hugging Face config: plain JSON, as ``transformers`` reads it, with positions."""
    from raysim.models.config import read_config

    text, sha256 = read_text(path, shown, MAX_BYTES)
    try:
        data = dict(read_config(path))
    except ScenarioError as error:
        raise ScenarioError(
            replace(p, where=replace(p.where, file=shown) if p.where else Location(file=shown))
            for p in error.problems
        ) from None
    try:
        marks = parse_hjson(text, shown).marks
    except ScenarioError:
        marks = {}
    return Document(file=shown, data=data, sha256=sha256, marks=marks, text=text)


def hf_config(source: Source) -> HfConfig:
    """The model's configuration as ``models.huggingface.build`` takes it.

    Raises
    ------
    ScenarioError
        The content is not a mapping.
    """
    from raysim.models.config import HfConfig

    document = source.documents[0]
    if not isinstance(document.data, dict):
        raise ScenarioError(document.problem((), "expected a mapping: a Hugging Face config.json"))
    return HfConfig(document.data, file=document.file, text=document.text)
