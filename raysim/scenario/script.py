"""``raysim run my_script.py --cluster cluster.yaml``: the scenario that two files make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import Location, Problem, ScenarioError
from raysim.hardware import catalog
from raysim.scenario.anyscale import read_cluster_file
from raysim.scenario.clusters import read_groups
from raysim.scenario.documents import Document, KeyPath, did_you_mean, printable
from raysim.scenario.hardware_choice import DEFAULT_GPU_NODE, unsaid
from raysim.scenario.kuberay import is_kuberay
from raysim.scenario.launchers import command_of, found_launcher, on_nodes
from raysim.scenario.overrides import Overrides
from raysim.scenario.plain_machines import DEFAULT_NODE
from raysim.scenario.program import ProgramScenario, program_scenario
from raysim.scenario.ray_cluster_yaml import is_ray_cluster_yaml
from raysim.scenario.ray_init import InitCall, init_call, resources_given
from raysim.scenario.sources import Source, read_sources


def script_scenario(
    script: Path,
    *,
    cluster: Path | None = None,
    compute: str | None = None,
    profile: Path | None = None,
    until: str | None = None,
    args: Sequence[str] = (),
    launcher: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> ProgramScenario:
    """A scenario whose job is a script.

    Parameters
    ----------
    script
        A Ray program, or a training script that a launcher starts.
    cluster
        `ray up` YAML, KubeRay YAML, or the ``cluster`` section of a scenario; None: one node of
        the catalog, with what the script's ``ray.init`` says of it.
    compute, until, args, profile
        As in a scenario.
    launcher
        As in a scenario; None: what the script's imports ask for.
    changes
        As ``load`` takes them.

    Raises
    ------
    ScenarioError
        The script or the cluster file is absent or wrong.
    """
    if not script.is_file():
        hint = did_you_mean(script.name, sorted(p.name for p in script.parent.glob("*.py")))
        where = Location(file=printable(str(script)))
        raise ScenarioError(Problem(message=f"no such file{hint}", where=where))
    job: dict[str, Any] = {"path": str(script)}
    if args:
        job["args"] = list(args)
    if compute is not None:
        job["compute"] = compute
    found, because = found_launcher(launcher, script)
    if found:
        job["launcher"] = found
    data: dict[str, Any] = {"name": script.stem[:100], "jobs": [{"script": job}]}
    data |= limits(until)
    if profile is not None:
        data["profile"] = str(profile)
    init = init_call(script)
    document = _with_cluster(Document(file=str(script), data=data), cluster, init)
    if found and cluster is None:
        document.data["cluster"] = _gpu_nodes(command_of(found, str(script), args).least_nodes)
    guessed = document.data["cluster"].get("hardware", {}) if cluster is not None else {}
    known: Mapping[KeyPath, Source] = {}
    if changes:
        known = read_sources(document, Path(), {}, [])
        document, known = Overrides(document, known).apply(changes)
    made = program_scenario(document, Path(), known)
    if because:
        made = _launched_everywhere(made, because)
    said = _of_cluster_given(init) if cluster is not None else _of_default_node(document, init)
    hardware = document.data["cluster"].get("hardware", {})
    if cluster is not None:
        kept = {name: node for name, node in guessed.items() if hardware.get(name) == node}
        made = replace(made, warnings=(*made.warnings, *_guessed(kept, cluster)))
    where = Location(file=document.data["jobs"][0]["script"]["path"], line=init.line)
    notes = [Problem(key="cluster", message=m, where=where if init.line else None) for m in said]
    return replace(made, warnings=(*made.warnings, *notes))


_STEPS = re.compile(r"([\d_,]+) *steps?")


def limits(until: str | None) -> dict[str, Any]:
    """The key of a scenario that says how much is played: ``3h``, ``200steps``, ``end``."""
    if until is None:
        return {}
    steps = _STEPS.fullmatch(until.strip())
    if steps is not None:
        return {"steps": int(steps[1].replace(",", ""))}
    return {"steps": 0} if until.strip() == "end" else {"until": until}


def _gpu_nodes(count: int) -> dict[str, Any]:
    """Where a training script runs if nobody says where."""
    return {"nodes": count, "node": DEFAULT_GPU_NODE}


def _launched_everywhere(made: ProgramScenario, because: str) -> ProgramScenario:
    """On all nodes with GPUs, as nobody has named the launcher; and what is said of it."""
    nodes = sum(group.count for group in made.cluster.groups if group.node.gpu_count)
    script = made.spec.jobs[0].script
    assert script is not None, "the only job is a script"
    said = script.launcher or ""
    launcher = on_nodes(said, nodes)
    if launcher != said:
        made = made.with_({"script.launcher": launcher})
    message = (
        f"it imports {because} and no ray; run as `{launcher} {Path(script.path).name}` would, "
        "a process per GPU. `raysim run LAUNCHER FLAGS SCRIPT ARGS` says it otherwise"
    )
    note = Problem(key="launcher", message=message, where=Location(file=script.path))
    return replace(made, warnings=(*made.warnings, note))


def _guessed(hardware: Mapping[str, Mapping[str, object]], cluster: Path) -> Iterator[Problem]:
    """Machines that a Ray file does not name, as this run has them."""
    for name, chosen in hardware.items():
        gpus = f" with {chosen['gpus']} GPUs" if "gpus" in chosen else ""
        message = (
            f"{name}: the file does not say what node it is; taken is {chosen['node']}{gpus}. Say "
            f"what it is in a scenario: cluster: {{from: {cluster.name}, hardware: ...}}"
        )
        where = Location(file=printable(str(cluster)))
        yield Problem(key="cluster", message=message, where=where)


def _of_cluster_given(init: InitCall) -> list[str]:
    """The cluster is there already, as for ``ray job submit``."""
    sizes = ", ".join((*init.given, *init.unread))
    if not sizes:
        return []
    return [f"ray.init's {sizes} would start a cluster of its own; taken is the one that was given"]


def _of_default_node(document: Document, init: InitCall) -> list[str]:
    section = document.data["cluster"]
    if "node" not in section:
        return []
    node = catalog.node(section["node"])
    if node.gpu is not None:
        count = section["nodes"]
        taken = f"are {count}" if count > 1 else "is one"
        message = (
            f"no --cluster given; taken {taken} {node.name} ({node.gpu_count} x {node.gpu.name}). "
            "--cluster FILE names others: a file with `nodes: 2` and `node: p4d.24xlarge`, say"
        )
        return [message]
    own = "".join(f", {n:g} {name}" for name, n in section.get("resources", {}).items())
    said = [
        f"no --cluster given; taken is one {node.name} ({node.vcpus} vCPUs, "
        f"{node.memory_bytes / 2**30:g} GiB, no GPU)" + (f" with{own[1:]}" if own else "")
    ]
    if init.unread:
        said.append(f"ray.init's {', '.join(init.unread)} is no constant, so it was not read")
    return said


def _with_cluster(document: Document, cluster: Path | None, init: InitCall) -> Document:
    """The document with its ``cluster`` section; positions are those of the cluster's file."""
    data = dict(document.data)
    if cluster is None:
        data["cluster"] = {"nodes": 1, "node": DEFAULT_NODE}
        own = resources_given(init.given)
        if own:
            data["cluster"]["resources"] = own
        if "object_store_memory" in init.given:
            store = init.given["object_store_memory"]
            data["ray"] = {"object_store_memory": f"{store:.0f}B"}
        return replace(document, data=data)
    found = read_cluster_file(cluster, printable(str(cluster)))
    if any(is_kuberay(d) or is_ray_cluster_yaml(d) for d in found):
        data["cluster"] = {"from": str(cluster)}
        guessed = unsaid(read_groups(found).groups)
        if guessed:
            data["cluster"]["hardware"] = guessed
        return replace(document, data=data)
    if found and isinstance(found[0].data, dict) and "apiVersion" in found[0].data:
        data["cluster"] = {"from": str(cluster)}  # of Kubernetes, but not KubeRay's: says so
        return replace(document, data=data)
    if not found or not isinstance(found[0].data, dict):
        where = Location(file=printable(str(cluster)))
        raise ScenarioError(Problem(message="expected a mapping", where=where))
    section = found[0].child(("cluster",)) if "cluster" in found[0].data else found[0]
    data["cluster"] = section.data
    marks = {("cluster", *path): mark for path, mark in section.marks.items()}
    return replace(document, file=str(cluster), data=data, marks=marks)
