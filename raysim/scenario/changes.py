"""What may be changed of a Ray program's cluster while it runs: read, checked, made ready.

``fail_node=2``, ``preempt=3,notice=30s``, ``cluster.worker.max_replicas=4``: faults by the names
they have under ``faults:``, and the autoscaler's bounds by their keys. A changed scenario says what
each means, so that a fault here is the fault that would be declared for that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.scenario.documents import did_you_mean
from raysim.scenario.program import ProgramScenario
from raysim.scenario.schema_program import FaultSection
from raysim.scenario.yaml_text import parse_scalar
from raysim.workloads.moment import Change

Asked = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""``"fail_node=2"``, ``{"fail_node": 2}``, or several of the latter."""
SETTINGS = ("notice", "share", "restart_after")
KINDS = tuple(name for name in FaultSection.model_fields if name not in ("at", *SETTINGS))


def change_of(scenario: ProgramScenario, asked: Asked, at_ns: int) -> Change:
    """A change of a run of the scenario at a moment.

    Raises
    ------
    ScenarioError
        It is not understood, or nothing that a running cluster can take.
    """
    faults: list[dict[str, Any]] = []
    keys: dict[str, Any] = {}
    for key, value in _items(asked):
        if key in KINDS:
            faults.append({"at": f"{at_ns}ns", key: value})
        elif key in SETTINGS and faults:
            faults[-1][key] = value
        elif "." in key:
            keys[key] = value
        else:
            near = "" if key in SETTINGS else did_you_mean(key, (*KINDS, *SETTINGS))
            raise ScenarioError(
                f"--change {key}={value}: no fault has this name{near} (there are "
                f"{', '.join(KINDS)}, with {', '.join(SETTINGS)} after them, and keys as "
                "cluster.GROUP.max_replicas)"
            )
    known = scenario.document.data.get("faults") or []
    declared = _declaring(scenario, [*known, *faults], asked) if faults else scenario
    happening = declared.job.faults[len(known) :] if faults else ()
    changed = declared.with_(keys) if keys else declared
    for key, value in keys.items():
        _must_be_possible(scenario, scenario.with_({key: value}), key)
    return Change(faults=happening, autoscaling=changed.job.autoscaling if keys else None)


def _declaring(
    scenario: ProgramScenario, faults: list[dict[str, Any]], asked: Asked
) -> ProgramScenario:
    """The scenario with these faults; what is wrong with the last is said of the change."""
    try:
        return scenario.with_({"faults": faults})
    except ScenarioError as error:
        told = asked if isinstance(asked, str) else f"{asked!r}"
        raise ScenarioError(
            Problem(message=f"--change {told}: {problem.message}") for problem in error.problems
        ) from error


def _items(asked: Asked) -> list[tuple[str, Any]]:
    if isinstance(asked, Mapping):
        return list(asked.items())
    if not isinstance(asked, str):
        return [item for one in asked for item in one.items()]
    found = []
    for part in filter(None, (p.strip() for p in asked.split(","))):
        key, _, value = part.partition("=")
        found.append((key.strip(), parse_scalar(value) if value.strip() else True))
    return found


def _must_be_possible(now: ProgramScenario, then: ProgramScenario, key: str) -> None:
    """Whether a key changes nothing but the autoscaler's bounds, within the machines there are."""
    for before, after in zip(now.cluster.groups, then.cluster.groups, strict=False):
        most = before.max_count
        if most is not None and after.count == before.count and (after.max_count or 0) > most:
            raise ScenarioError(
                f"--change {key}: the cluster was made for {most} nodes of {before.name} at most; "
                f"say more with --set {key}=..., and what there was before as the change"
            )
    if _but_for_bounds(now) != _but_for_bounds(then):
        raise ScenarioError(
            f"--change {key}: a cluster that runs cannot take this; what it can are faults and the "
            "autoscaler's bounds. For another run from its beginning: raysim run --set, and compare"
        )
    if now.job.autoscaling is None:
        raise ScenarioError(f"--change {key}: the cluster has no autoscaler, whose bound this is")


def _but_for_bounds(scenario: ProgramScenario) -> tuple[object, ...]:
    """Job and cluster, whatever the autoscaler may do."""
    groups = tuple(replace(group, max_count=None) for group in scenario.cluster.groups)
    clouds = replace(scenario.job.clouds, spares={})
    job = replace(scenario.job, autoscaling=None, clouds=clouds)
    return job, replace(scenario.cluster, groups=groups)
