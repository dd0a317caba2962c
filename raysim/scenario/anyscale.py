"""Anyscale's compute configs, as the node types of ``ray up`` that they stand for.

Two spellings: ``head_node_type`` and ``worker_node_types`` with ``min_workers``, ``max_workers``;
and, newer, ``head_node`` and ``worker_nodes`` with ``min_nodes``, ``max_nodes``. On GCP the name of
a machine carries its GPUs: ``n1-standard-8-nvidia-tesla-t4-1``. Configs of jobs and services have
one within, as ``compute_config``.

Source: https://docs.anyscale.com/reference/compute-config-api and the compute configs in Ray's
repository. Not modelled: spot markets, flags, what is passed to the cloud, workers that Anyscale
would choose itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.scenario.documents import Document, KeyPath, Mark, shorten
from raysim.scenario.kuberay import as_rayjob
from raysim.scenario.yaml_text import read_yaml_all

_SPELLINGS = (("head_node_type", "worker_node_types"), ("head_node", "worker_nodes"))
_WITH_GPUS = re.compile(r"(.+?)-(nvidia-.+)-(\d{1,3})")
_RESOURCES = {"cpu": "CPU", "gpu": "GPU"}
_WITHIN = "compute_config"


def read_cluster_file(path: Path, shown: str) -> list[Document]:
    """Documents of a cluster file; a compute config as ``ray up`` would say it.

    Raises
    ------
    ScenarioError
        The file cannot be read or is not YAML, or names a compute config that is elsewhere.
    """
    return [_as_ray_up(as_rayjob(document)) for document in read_yaml_all(path, shown)]


def _as_ray_up(document: Document) -> Document:
    data = document.data
    if not isinstance(data, dict) or "provider" in data:
        return document
    if _WITHIN in data:
        if not isinstance(data[_WITHIN], dict):
            message = (
                f"expected machines (head_node, worker_nodes), got {shorten(data[_WITHIN])}; "
                "`anyscale compute-config get` shows those of a name"
            )
            raise ScenarioError(document.problem((_WITHIN,), message))
        document = replace(
            document, data=data[_WITHIN], marks=_moved(document.marks, (_WITHIN,), ())
        )
        return _as_ray_up(document)
    for head, workers in _SPELLINGS:
        if isinstance(data.get(head), dict) and isinstance(data.get(workers, []), list):
            _check_workers(document, head, workers)
            return _translated(document, head, workers)
    return document


def _check_workers(document: Document, head: str, workers: str) -> None:
    """Where Anyscale is to pick the workers and the head takes no tasks, nothing could run."""
    data, key = document.data, "auto_select_worker_config"
    said = data[head].get("resources")
    cpus = next((said[k] for k in ("CPU", "cpu") if k in said), 1) if said else 1
    if data.get(key) is True and not data.get(workers) and not cpus:
        message = (
            f"Anyscale picks the machines of workers as the job asks for them, and {head} has no "
            f"CPUs for tasks: name the machines in {workers}, such as "
            "[{instance_type: m5.2xlarge, min_nodes: 0, max_nodes: 4}]"
        )
        raise ScenarioError(document.problem((key,), message))


def _translated(document: Document, head: str, workers: str) -> Document:
    """Each node with its name; positions are those of the compute config."""
    data, types = document.data, dict[str, Any]()
    marks = {path: mark for path, mark in document.marks.items() if not path}
    entries: list[tuple[KeyPath, Any, str]] = [((head,), data[head], "head")]
    listed = data.get(workers, [])
    entries += [((workers, i), entry, f"worker-{i}") for i, entry in enumerate(listed)]
    for path, entry, otherwise in entries:
        found = entry if isinstance(entry, Mapping) else {}
        name = str(found.get("name", otherwise))
        types[name] = _node_type(found, head=path == (head,))
        here: KeyPath = ("available_node_types", name)
        marks |= _moved(document.marks, path, here)
        for newer, older in (("min_nodes", "min_workers"), ("max_nodes", "max_workers")):
            marks |= _moved(document.marks, (*path, newer), (*here, older))
    modern = {
        "max_workers": sum(_count(node, "max_workers") for node in types.values()),
        "available_node_types": types,
        "head_node_type": next(iter(types)),
    }
    for key in ("idle_timeout_minutes", "auto_select_worker_config"):
        if key in data:
            modern[key] = data[key]
            marks |= _moved(document.marks, (key,), (key,))
    return replace(document, data=modern, marks=marks)


def _count(node: Mapping[str, Any], key: str) -> int:
    """A number of nodes; what is none is refused where it is read."""
    value = node.get(key)
    return value if isinstance(value, int) else 0


def _node_type(entry: Mapping[str, Any], *, head: bool) -> dict[str, Any]:
    """Instance type, resources and bounds of one node."""
    machine, made = str(entry.get("instance_type", "")), dict[str, Any]()
    config: dict[str, Any] = {"InstanceType": machine} if machine else {}
    if match := _WITH_GPUS.fullmatch(machine):
        gpu = {"acceleratorType": match[2], "acceleratorCount": int(match[3])}
        config = {"machineType": match[1], "guestAccelerators": [gpu]}
    made["node_config"] = config
    said = entry.get("resources")
    if isinstance(said, Mapping):
        custom = said.get("custom_resources")
        flat = {_RESOURCES.get(k, k): v for k, v in said.items() if k != "custom_resources"}
        made["resources"] = flat | (dict(custom) if isinstance(custom, Mapping) else {})
    if isinstance(entry.get("labels"), Mapping):
        made["labels"] = dict(entry["labels"])
    if not head:
        lowest = entry.get("min_workers", entry.get("min_nodes", 0))
        made["min_workers"] = lowest
        made["max_workers"] = entry.get("max_workers", entry.get("max_nodes", lowest or 10))
    return made


def _moved(marks: Mapping[KeyPath, Mark], old: KeyPath, new: KeyPath) -> dict[KeyPath, Mark]:
    """Marks of one path and below under another."""
    return {
        (*new, *path[len(old) :]): mark for path, mark in marks.items() if path[: len(old)] == old
    }
