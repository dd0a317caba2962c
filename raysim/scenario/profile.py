"""Profile files: YAML to ``perf.profile.Profile`` and back, and onto a cluster's datasheets.

A constant is a number, or ``{value, unit, prior, bounds, error, source, rows}``. Its unit is the
one its name ends in; a file that says another is refused, not converted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.specs import NodeSpec, Provenance
from raysim.perf.profile import (
    DATASHEET,
    OWN,
    Constant,
    Profile,
    SectionName,
    bounds_of,
    known,
    unit_of,
)
from raysim.scenario.documents import Document, KeyPath, did_you_mean, printable
from raysim.scenario.problems import problems_of
from raysim.scenario.section import Section
from raysim.scenario.sources import PROFILE
from raysim.scenario.yaml_text import read_yaml


def _number_alone(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"value": value} if number else value


class ConstantSection(Section):
    """One constant."""

    value: float = Field(gt=0, description="In the unit that the constant's name ends in.")
    unit: str | None = Field(None, description="ns, s, bytes, bytes/s, or 1 for a share.")
    prior: float | None = Field(None, gt=0, description="What was expected before measuring.")
    bounds: list[float] | None = Field(
        None, min_length=2, max_length=2, description="[lower, upper]: what is possible."
    )
    error: float | None = Field(None, ge=0, description="Standard error, as a share of the value.")
    source: str = Field("", description="How it was found.")
    rows: list[str] = Field(
        default_factory=list, description="Measured rows it is from; none: an assumption."
    )


class ProfileSection(Section):
    """The root of a profile file."""

    profile: str = Field(min_length=1, max_length=100, description="Name, for reports.")
    made: str = Field("", description="Date.")
    source: str = Field("", description="What was measured, and how it was fitted.")
    spread: float | None = Field(
        None, ge=0, description="Standard deviation of ln(predicted / measured) it was fitted to."
    )
    ray: dict[str, Annotated[ConstantSection, BeforeValidator(_number_alone)]] = Field(
        default_factory=dict, description="Service times of Ray's own threads, by name."
    )
    training: dict[str, Annotated[ConstantSection, BeforeValidator(_number_alone)]] = Field(
        default_factory=dict, description="Constants of training jobs, by name."
    )


def load_profile(path: Path) -> Profile:
    """The profile in a file.

    Raises
    ------
    ScenarioError
        The file cannot be read, or anything in it is wrong; one problem each.
    """
    return profile_of(read_yaml(path, printable(str(path))))


def profile_at(path: Path) -> Profile:
    """The profile in a file, if there is one, or raysim's own; errors as :func:`load_profile`."""
    return load_profile(path) if path.exists() else OWN


def profile_of(document: Document) -> Profile:
    """The profile that a document says; errors as :func:`load_profile`."""
    if not isinstance(document.data, dict):
        raise ScenarioError(document.problem((), "expected a mapping: profile, ray, training"))
    try:
        said = ProfileSection.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(problems_of(error, document, ProfileSection)) from None
    sections: tuple[tuple[SectionName, Mapping[str, ConstantSection]], ...]
    sections = (("ray", said.ray), ("training", said.training))
    problems = [
        problem
        for section, constants in sections
        for name, constant in constants.items()
        for problem in _wrong(section, name, constant, document)
    ]
    if problems:
        raise ScenarioError(problems)
    return Profile(
        name=said.profile,
        made=said.made,
        source=said.source,
        spread=said.spread,
        ray={name: _constant("ray", name, c) for name, c in said.ray.items()},
        training={name: _constant("training", name, c) for name, c in said.training.items()},
    )


def _wrong(
    section: SectionName, name: str, said: ConstantSection, document: Document
) -> Iterator[Problem]:
    here: KeyPath = (section, name)
    names = known(section)
    if name not in names:
        other: SectionName = "training" if section == "ray" else "ray"
        hint = did_you_mean(name, names)
        hint = f"; it belongs to {other!r}" if name in known(other) else hint
        message = f"unknown constant {printable(name)!r}{hint}"
        yield document.problem(here, message, key=True)
        return
    if said.unit is not None and said.unit != unit_of(name):
        message = f"{name} is in {unit_of(name)}, not in {printable(said.unit)}"
        yield document.problem((*here, "unit"), message)
    most = bounds_of(name, None)[1]
    lower, upper = said.bounds or (0.0, most)
    at = (*here, "bounds") if said.bounds else here
    if not 0 <= lower < upper <= most:
        below = f", the upper at most {most:g}" if math.isfinite(most) else ""
        yield document.problem(at, f"expected [lower, upper] with 0 <= lower < upper{below}")
    elif not lower <= said.value <= upper:
        message = f"{said.value:g} is outside of its bounds {lower:g} to {upper:g}"
        yield document.problem((*here, "value"), message)


def _constant(section: SectionName, name: str, said: ConstantSection) -> Constant:
    own = known(section)[name]
    lower, upper = said.bounds or (0.0, bounds_of(name, None)[1])
    return Constant(
        value=said.value,
        unit=unit_of(name),
        prior=own if said.prior is None else said.prior,
        lower=lower,
        upper=upper,
        error=said.error,
        source=said.source,
        rows=tuple(said.rows),
    )


def without_effect(
    profile: Profile | None, section: SectionName, document: Document
) -> Iterator[Problem]:
    """A warning when a job of this kind does not look at any of the profile's constants."""
    if profile is not None and not getattr(profile, section):
        message = f"{profile.name} has nothing in section {section!r}; it changes nothing here"
        yield document.problem(PROFILE, message)


def profile_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain data: the YAML that :func:`profile_of` reads."""
    head: dict[str, Any] = {
        "profile": profile.name, "made": profile.made, "source": profile.source,
    }  # fmt: skip
    if profile.spread is not None:
        head["spread"] = profile.spread
    return head | {
        section: {name: _said(constant) for name, constant in constants.items()}
        for section, constants in (("ray", profile.ray), ("training", profile.training))
        if constants
    }


def _said(constant: Constant) -> dict[str, Any]:
    said: Mapping[str, Any] = {
        "value": constant.value,
        "unit": constant.unit,
        "prior": constant.prior,
        "bounds": [constant.lower, constant.upper] if math.isfinite(constant.upper) else None,
        "error": constant.error,
        "source": constant.source or None,
        "rows": list(constant.rows) or None,
    }
    return {key: value for key, value in said.items() if value is not None}


def on_cluster(cluster: ClusterSpec, profile: Profile) -> ClusterSpec:
    """The cluster with those numbers of its datasheets that the profile says otherwise."""
    groups = (replace(g, node=on_node(g.node, profile)) for g in cluster.groups)
    return replace(cluster, groups=tuple(groups))


def on_node(node: NodeSpec, profile: Profile) -> NodeSpec:
    """The same of one node."""
    said = {name: c for name, c in profile.training.items() if name in DATASHEET}
    return _measured_node(node, profile, said) if said else node


def _measured_node(node: NodeSpec, profile: Profile, said: Mapping[str, Constant]) -> NodeSpec:
    parts: dict[str, Any] = {"nic": node.nic, "gpu": node.gpu}
    for name, constant in said.items():
        part, field = DATASHEET[name]
        spec = parts[part]
        if spec is not None and not hasattr(spec, field):
            message = f"profile {profile.name}: {name} is of ranks on the CPU, not of {spec.name}"
            raise ScenarioError(Problem(message=message))
        if spec is not None:
            origin: dict[str, Provenance] = {
                **spec.provenance,
                field: profile.provenance(constant),
            }
            number = round(constant.value) if unit_of(name) == "bytes" else constant.value
            parts[part] = replace(spec, **{field: number}, provenance=origin)
    return replace(node, **parts)
