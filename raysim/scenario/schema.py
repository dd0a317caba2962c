"""The whole scenario as typed sections; each field's description is what `check --explain` prints.

Reading order: ``section.py``, ``quantities.py``, ``schema_cluster.py``, ``schema_train.py``, here.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from raysim.scenario.quantities import Seconds
from raysim.scenario.schema_cluster import ClusterSection
from raysim.scenario.schema_train import TrainSection
from raysim.scenario.section import Condition, FileOrMapping, Section

Width = Annotated[int, Field(ge=1, le=10**9)]


def _two_widths(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return value
    raise ValueError("expected [in_features, out_features]")


class LinearLayer(Section):
    """``torch.nn.Linear`` in a plain sequential model."""

    linear: Annotated[tuple[Width, Width], BeforeValidator(_two_widths)] = Field(
        description="[in_features, out_features]."
    )


def _sequential_layer(value: Any) -> Any:
    if value == "relu" or isinstance(value, (dict, LinearLayer)):
        return value
    raise ValueError("expected `relu` or `linear: [in, out]`")


SequentialLayer = Annotated[Literal["relu"] | LinearLayer, BeforeValidator(_sequential_layer)]


class ModelSection(Section):
    """The model: the user's Hugging Face config, or a plain stack of layers."""

    source: FileOrMapping | None = Field(
        None, alias="from", description="Hugging Face config.json, unmodified."
    )
    sequential: list[SequentialLayer] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="Layers of a torch.nn.Sequential or PipelineModule: linear: [in, out], relu.",
    )
    architecture: str | None = Field(
        None,
        description="Class such as BertForSequenceClassification, when the config has several.",
    )
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] = Field(
        "sdpa",
        description="attn_implementation; flash_attention_3 needs Hopper. sdpa is torch 2.11's: "
        "cuDNN on Hopper and Blackwell; flash_attention_2 stands for older ones there.",
    )
    fused_loss: bool = Field(
        False, description="Fused linear and cross-entropy (Liger): logits never exist whole."
    )
    target_len: int | None = Field(None, ge=1, le=10**9, description="Decoder tokens, for T5.")
    name: str | None = Field(None, description="Name, for the report.")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if (self.source is None) == (self.sequential is None):
            raise ValueError("needs one of `from` (a Hugging Face config.json) and `sequential`")
        return self


class JobSection(Section):
    """One job on the cluster."""

    train: TrainSection = Field(description="A training job.")
    name: str = Field("train", min_length=1, description="Name, for the report.")


class FaultsSection(Section):
    """How often things break; of a training job, `failures` and `noise` of `train` say it."""

    gpu_mtbf: Seconds | None = Field(None, description="Mean time between failures of one GPU.")
    node_mtbf: Seconds | None = Field(None, description="Mean time between failures of one node.")
    link_mtbf: Seconds | None = Field(None, description="Mean time between failures of one link.")
    spot_mtbf: Seconds | None = Field(None, description="Mean time until a spot node is reclaimed.")
    node_repair: Seconds | None = Field(None, description="Time until a node is replaced.")
    restart: Seconds | None = Field(None, description="Time to restart the job.")


class RecordSection(Section):
    """What is recorded."""

    trace: str | None = Field(None, description="Steps in the trace, such as `steps 3-5`.")
    metrics_every: Seconds | None = Field(None, description="Sampling period of counters.")


class MomentSection(Section):
    """Where a saved run stands. Who plays the file finds out there whether it is the same run."""

    at_ns: int = Field(ge=0, description="Virtual time, whole nanoseconds.")
    events: int = Field(ge=0, description="How much has happened up to then.")
    digest: str = Field(description="Hash of all of it.")


class ResolvedSection(Section):
    """Written by raysim into a resolved scenario: what it was made from."""

    raysim: str = Field(description="Version of raysim that wrote the file.")
    files: dict[str, str] = Field(
        default_factory=dict, description="SHA-256 of each user file whose content stands inline."
    )
    moment: MomentSection | None = Field(None, description="Of a saved run: where it stands.")


class ScenarioSection(Section):
    """The root of scenario.yaml."""

    raysim: Literal[1] = Field(1, description="Version of this file format.")
    name: str = Field(
        "scenario", min_length=1, max_length=100, description="Name of runs and reports."
    )
    description: str = Field("", description="For people.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every random stream.")
    cluster: ClusterSection = Field(description="Nodes and the network between them.")
    model: ModelSection = Field(description="The model to train.")
    profile: FileOrMapping | None = Field(
        None, description="Constants measured on the cluster's machines: raysim calibrate's file."
    )
    jobs: list[JobSection] = Field(
        min_length=1, max_length=1, description="What runs on the cluster; one job."
    )
    faults: FaultsSection | None = Field(None, description="Not simulated; use train.failures.")
    targets: dict[str, Condition] = Field(
        default_factory=dict, description="Limits by metric, such as `days: <= 14`."
    )
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, description="Values to search, by key; used by plan, ignored by run."
    )
    record: RecordSection | None = Field(None, description="What is recorded.")
    resolved: ResolvedSection | None = Field(None, description="Written by raysim; do not edit.")

    @property
    def train(self) -> TrainSection:
        """The training job."""
        return self.jobs[0].train


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Model classes inside a field's annotation (through lists, unions and Annotated)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for inner in typing.get_args(annotation):
            yield from sections_in(inner)


def known_keys(model: type[BaseModel]) -> dict[str, str]:
    """YAML key of each field of a section, and the field's Python name."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


def section_at(root: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The section class whose keys stand directly under ``path``; None when it is free-form."""
    found: type[BaseModel] | None = root
    free = False
    for step in path:
        if isinstance(step, int) or free:
            free = False
            continue
        if found is None or step not in known_keys(found):
            return None
        annotation = found.model_fields[known_keys(found)[step]].annotation
        free = typing.get_origin(annotation) is dict
        found = next(sections_in(annotation), None)
    return None if free else found
