"""``raysim check``: what a scenario says once every default is taken; nothing is simulated."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.cli.run import load
from raysim.errors import ScenarioError
from raysim.units import format_count

if TYPE_CHECKING:
    from raysim.hardware.cluster import ClusterSpec
    from raysim.scenario.program import ProgramScenario
    from raysim.workloads.train_job import TrainJob

_JOB = "jobs.train"


def print_resolved(path: Path, changes: tuple[str, ...], *, quiet: bool = False) -> None:
    """Print the resolved scenario as YAML that replays it; notes and warnings are its comments.

    If ``quiet``, only what it is in one line, and warnings.
    """
    from rich.text import Text

    from raysim.results.result import yaml_text
    from raysim.scenario.build import build_job
    from raysim.scenario.load import Scenario

    scenario = load(path, changes)
    said = (
        _in_one_line(build_job(scenario), scenario.cluster)
        if isinstance(scenario, Scenario)
        else _program_in_one_line(scenario)
    )
    if quiet:
        terminal.say("\n".join([said, *map(str, scenario.warnings)]))
        return
    terminal.show(Text(f"# {said}", "bold"))
    terminal.say(yaml_text(scenario.resolved()))
    for heading, problems in (
        ("Defaults taken and choices made", scenario.notes),
        ("Warnings", scenario.warnings),
    ):
        if problems:
            terminal.show(Text(f"\n# {heading}:", "bold"))
        for problem in problems:
            terminal.show(Text(f"#   {problem}"))


def _in_one_line(job: TrainJob, cluster: ClusterSpec) -> str:
    """Model, cluster, layout and batch as they were understood."""
    plan, mesh = job.plan, job.plan.mesh
    nodes = " + ".join(f"{g.count} x {g.node.name}" for g in cluster.groups if g.count)
    batch = f"micro {plan.micro_batch} x ga {plan.gradient_accumulation_steps}"
    return (
        f"{plan.model.name}, {format_count(plan.model.num_parameters)} parameters; "
        f"{nodes}, {cluster.num_gpus} GPUs; {plan.engine_label}, "
        f"dp {mesh.dp}, tp {mesh.tp}, pp {mesh.pp}, "
        f"{plan.precision}, {batch}"
    )


def _program_in_one_line(scenario: ProgramScenario) -> str:
    """Script, cluster and what goes wrong as they were understood."""
    job, groups = scenario.job, scenario.cluster.groups
    nodes = " + ".join(f"{g.count} x {g.node.name}" for g in groups if g.count)
    grows = ", autoscaled" if job.autoscaling is not None else ""
    faults = f"; {len(job.faults)} faults" if job.faults else ""
    return f"{job.title}, compute {job.compute}; {nodes}{grows}{faults}"


def print_schema() -> None:
    """Print the JSON Schema of scenario files: of training jobs, or of Ray programs."""
    terminal.say(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def print_explanation(key: str, path: Path | None, changes: tuple[str, ...]) -> None:
    """Print what ``key`` means, what it accepts, its default and, given a scenario, its value.

    Raises
    ------
    ScenarioError
        There is no such key; says the nearest.
    """
    known = dict(keys(json_schema()))
    name = _full_name(key, known)
    entry = known[name]
    terminal.say(f"{key}: {entry.get('description', 'a section')}")
    terminal.say(f"  accepts  {_accepts(entry)}")
    if "default" in entry:
        terminal.say(f"  default  {json.dumps(entry['default'])}")
    below = [k.removeprefix(f"{name}.") for k in known if k.startswith(f"{name}.")]
    if below:
        terminal.say(f"  keys     {', '.join(k for k in below if '.' not in k)}")
    if path is not None:
        resolved = load(path, changes).resolved()
        terminal.say(f"  here     {json.dumps(_value(resolved, name), default=str)}")


def keys(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of a JSON Schema by dotted path; ``*`` stands for a name the user chooses."""
    definitions = schema.get("$defs", {})

    def below(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for option in _options(node, definitions):
            for name, child in option.get("properties", {}).items():
                yield from entry(child, f"{path}.{name}" if path else name)
            if isinstance(option.get("additionalProperties"), dict):
                yield from entry(option["additionalProperties"], f"{path}.*")
            if isinstance(option.get("items"), dict):
                yield from below(option["items"], path)

    def entry(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        merged: dict[str, Any] = {}
        for option in _options(node, definitions):
            merged = option | merged
        yield path, merged | dict(node)
        yield from below(node, path)

    yield from below(schema, "")


def _options(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a node, references followed."""
    found: list[dict[str, Any]] = []
    for part in node.get("anyOf") or node.get("oneOf") or node.get("allOf") or [node]:
        reference = part.get("$ref")
        found.append(definitions[reference.rsplit("/", 1)[-1]] if reference else dict(part))
    return found


def _full_name(key: str, known: Mapping[str, Any]) -> str:
    short = key.removeprefix("train.")
    wanted = key.replace("jobs.0.", "jobs.")
    for name in (wanted, f"jobs.{wanted}", f"{_JOB}.{short}"):
        if name in known:
            return name
    parts = wanted.split(".")
    for name in known:
        pieces = name.split(".")
        if len(pieces) == len(parts) and all(
            p in {"*", q} for p, q in zip(pieces, parts, strict=True)
        ):
            return name
    spoken = [name.removeprefix("jobs.") for name in known]
    near = difflib.get_close_matches(key, spoken, 3, 0.5)
    near += [n for n in spoken if n.rpartition(".")[2] == key.rpartition(".")[2]][:3]
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    raise ScenarioError(f"--explain {key}: no such key{hint}")


def _accepts(entry: Mapping[str, Any]) -> str:
    words = []
    for option in entry.get("anyOf") or [entry]:
        if "enum" in option:
            words.append(", ".join(map(str, option["enum"])))
        elif "const" in option:
            words.append(str(option["const"]))
        elif "$ref" in option or option.get("type") == "object":
            words.append("a section")
        elif option.get("type") != "null":
            kind = option.get("type", "any value")
            words.append(" or ".join(kind) if isinstance(kind, list) else str(kind))
        if option.get("examples"):
            words[-1] += f" such as {option['examples'][0]}"
    return " or ".join(words)


def _value(resolved: Any, name: str) -> Any:
    """Where ``name`` stands in the resolved scenario; a list gives its first entry with the key."""
    here = resolved
    for part in name.split("."):
        if isinstance(here, list):
            here = next((h for h in here if isinstance(h, Mapping) and part in h), None)
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def json_schema() -> dict[str, Any]:
    """Of scenario files: training jobs, or Ray programs."""
    from pydantic import TypeAdapter

    from raysim.scenario.schema import ScenarioSection
    from raysim.scenario.schema_program import ProgramSection

    both: TypeAdapter[Any] = TypeAdapter(ScenarioSection | ProgramSection)
    return both.json_schema(by_alias=True)
