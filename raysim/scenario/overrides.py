"""``--set a.b=c`` and ``scenario.with_``: change any key, also inside the user's files.

Short names: ``train.x`` is ``jobs.0.train.x``, and the like of every kind of job;
``train.zero_stage`` is the stage in DeepSpeed's JSON; ``cluster.GROUP.replicas`` is
``cluster.hardware.GROUP.replicas``. A batch size that the JSON states is changed there too, and of
the triple the number nobody asked for gives way, so that ``train.micro_batch=4`` alone is never a
contradiction.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.documents import Document, KeyPath, dotted, one_line, value_at
from raysim.scenario.kuberay import group_names
from raysim.scenario.library import LIBRARIES
from raysim.scenario.schema import ModelSection, known_keys
from raysim.scenario.schema_cluster import ClusterSection
from raysim.scenario.sources import CLUSTER, DEEPSPEED, MODEL, SLOTS, Source

TRAIN: KeyPath = ("jobs", 0, "train")
_JSON_KEY = {
    "micro_batch": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "global_batch": "train_batch_size",
    "global_batch_tokens": "train_batch_size",
}
_BATCH_TOTALS = ("global_batch", "global_batch_tokens")
_REPLICAS = ("workers", "tensor_parallel", "pipeline")


_SHORTER = {
    "activation_checkpointing": "checkpointing",
    "offload_optimizer.device": "offload", "offload_param.device": "offload_param",
    "checkpoint.every": "checkpoint_every",
    "fsdp_activation_checkpointing": "checkpointing", "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp", "expert_model_parallel_size": "ep",
    "context_parallel_size": "cp", "tensor_parallel_size": "tp", "tensor_parallel": "tp",
}  # fmt: skip


def short_key(key: str) -> str:
    """A key's last part that says something, for a table's head: ``nodes``, ``zero_stage``."""
    *_, before, last = ["", *key.split(".")]
    if last == "replicas":  # of a group of nodes; those of a deployment are what they are called
        return "nodes" if key.startswith("cluster.") else last
    return _SHORTER.get(f"{before}.{last}") or _SHORTER.get(last, last)


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Short names of keys that are told apart by them."""
    listed = list(keys)
    short = {k: short_key(k.removesuffix(".device")) for k in listed}
    twice = {label for label in short.values() if list(short.values()).count(label) > 1}
    return {k: ".".join(k.split(".")[-2:]) if short[k] in twice else short[k] for k in listed}


def shown(value: Any) -> str:
    """A value to try as a person reads it: keys that change as one by their name, or each."""
    if not isinstance(value, Mapping):
        return str(value)
    name = value.get("name")
    return str(name or ", ".join(f"{short_key(k)} {v}" for k, v in value.items()) or "as it is")


class Overrides:
    """Copies of a scenario's documents with changes applied."""

    def __init__(self, document: Document, sources: Mapping[KeyPath, Source]) -> None:
        self.data = copy.deepcopy(document.data)
        self.document = document
        self.sources = dict(sources)
        self.changed: list[tuple[KeyPath, str]] = []

    def apply(self, changes: Mapping[str, Any]) -> tuple[Document, dict[KeyPath, Source]]:
        """The changed scenario document and file contents.

        Raises
        ------
        ScenarioError
            A key cannot exist: its parent is not a mapping.
        """
        paths = {key: self.path_of(key) for key in changes}
        for key, path in paths.items():
            self.put(path, changes[key], f"--set {one_line(key)}={_short(changes[key])}")
        self.reconcile_batch({p[3] for p in paths.values() if p[:3] == TRAIN and len(p) > 3})
        return self.document.with_data(self.data, self.changed), self.sources

    def path_of(self, key: str) -> KeyPath:
        """The full path of a key or short name."""
        steps: list[str | int] = [
            int(s) if s.isdecimal() and len(s) < 9 else s for s in key.split(".")
        ]
        if steps[0] == "train":
            if steps[1:] == ["zero_stage"]:
                return (*DEEPSPEED, "zero_optimization", "stage")
            return (*TRAIN, *steps[1:])
        if steps[0] in ("script", "workload", *LIBRARIES):
            self.spell_out_script()
            return ("jobs", 0, *steps)
        written = isinstance(self.data.get("cluster"), dict)
        if (
            written
            and steps[0] == "cluster"
            and len(steps) > 2
            and (steps[1] not in known_keys(ClusterSection) or steps[1] in self.groups())
        ):
            if "nodes" in self.data["cluster"] and steps[2:] == ["replicas"]:
                return ("cluster", "nodes")
            return ("cluster", "hardware", *self.split_group(key.removeprefix("cluster.")))
        if steps[0] == "model" and self.reaches_into_model(steps):
            return (*MODEL, *steps[1:])
        return tuple(steps)

    def spell_out_script(self) -> None:
        """``script: main.py`` as a section, so that its keys can be set."""
        job = value_at(self.data, ("jobs", 0))
        if isinstance(job, dict) and isinstance(job.get("script"), str):
            job["script"] = {"path": job["script"]}

    def groups(self) -> list[str]:
        """Names of groups that the scenario or its cluster file has."""
        names = list(self.data["cluster"].get("hardware") or {})
        source = self.sources.get(CLUSTER)
        for document in source.documents if source is not None else ():
            types = value_at(document.data, ("available_node_types",))
            names += list(types) if isinstance(types, dict) else []
            names += group_names(document)
        return list(map(str, names))

    def split_group(self, key: str) -> list[str]:
        """Group name and the rest; names of node types may have dots (``ray.worker.default``)."""
        for name in sorted(self.groups(), key=len, reverse=True):
            if key.startswith(f"{name}."):
                return [name, *key.removeprefix(f"{name}.").split(".")]
        return key.split(".")

    def reaches_into_model(self, steps: list[str | int]) -> bool:
        """``model.num_hidden_layers`` is the config's key: the section has none of that name."""
        names = known_keys(ModelSection)
        source = self.sources.get(MODEL)
        known = source.content if source is not None else None
        return (
            len(steps) > 1
            and steps[1] not in names
            and isinstance(known, dict)
            and steps[1] in known
        )

    def put(self, path: KeyPath, value: Any, said: str) -> None:
        """Put ``value`` at ``path``, in the scenario or in the content of a file."""
        for slot in SLOTS:
            if path[: len(slot)] == slot and len(path) > len(slot):
                source = self.sources.get(slot)
                if source is not None and source.path is not None:
                    self.sources[slot] = _changed_file(source, path[len(slot) :], value, said)
                    return
            elif path == slot:
                self.sources.pop(slot, None)
        _put(self.data, path, value, said)
        self.changed.append((path, said))

    def reconcile_batch(self, fields: set[str | int]) -> None:
        """Make DeepSpeed's JSON and the ``auto`` block follow a changed batch size."""
        train = value_at(self.data, TRAIN)
        source = self.sources.get(DEEPSPEED)
        if source is None or not isinstance(train, dict) or not isinstance(source.content, dict):
            return
        json = source.content
        given = {key for key in _JSON_KEY.values() if json.get(key) not in (None, "auto")}
        asked = {_JSON_KEY[str(name)] for name in fields if name in _JSON_KEY}
        auto = train.get("auto")
        for name in fields & _JSON_KEY.keys():
            key = _JSON_KEY[str(name)]
            if isinstance(auto, dict) and key in auto:
                train["auto"] = {k: v for k, v in auto.items() if k != key}
                self.changed.append(((*TRAIN, "auto"), f"--set train.{name}"))
            if key in given and train.get(name) is None:
                self.drop(key)
            elif key in given and name not in _BATCH_TOTALS:
                self.put((*DEEPSPEED, key), train[name], f"--set train.{name}={train[name]}")
        total_asked = "train_batch_size" in asked
        if total_asked:
            self.drop("train_batch_size")
        elif asked == {"train_micro_batch_size_per_gpu"} and self.has_total(json, train):
            self.drop("gradient_accumulation_steps")
        elif asked:
            self.drop("train_batch_size")
        if not asked and fields & set(_REPLICAS) and len(given) == len(set(_JSON_KEY.values())):
            self.drop("train_batch_size")

    def has_total(self, json: Mapping[str, Any], train: Mapping[str, Any]) -> bool:
        """Whether the samples per step are fixed by the JSON or the scenario."""
        stated = json.get("train_batch_size") not in (None, "auto")
        return stated or any(train.get(name) is not None for name in _BATCH_TOTALS)

    def drop(self, key: str) -> None:
        """Remove a key from DeepSpeed's JSON."""
        source = self.sources[DEEPSPEED]
        if isinstance(source.content, dict) and key in source.content:
            if source.path is None:
                value_at(self.data, DEEPSPEED).pop(key, None)
                return
            content = {k: v for k, v in source.content.items() if k != key}
            document = source.documents[0].with_data(content, ())
            self.sources[DEEPSPEED] = replace(source, documents=(document,))


def _changed_file(source: Source, path: KeyPath, value: Any, said: str) -> Source:
    """A file's content with one key changed."""
    documents = list(source.documents)
    which = 0
    if len(documents) > 1 and isinstance(path[0], int) and path[0] < len(documents):
        which, path = path[0], path[1:]
    data = copy.deepcopy(documents[which].data)
    _put(data, path, value, said)
    documents[which] = documents[which].with_data(data, [(path, said)])
    return replace(source, documents=tuple(documents))


def _put(data: Any, path: KeyPath, value: Any, said: str) -> None:
    """Set a key, making the mappings on the way."""
    for i, step in enumerate(path[:-1]):
        if isinstance(data, dict):
            if data.get(step) is None:
                data[step] = {}
            data = data[step]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            _refuse(path[: i + 1], said)
    last = path[-1]
    if isinstance(data, dict):
        data[str(last)] = value
    elif isinstance(data, list) and isinstance(last, int) and last < len(data):
        data[last] = value
    else:
        _refuse(path, said)


def _refuse(path: KeyPath, said: str) -> None:
    parent = dotted(path[:-1]) or "the scenario"
    message = f"no key {path[-1]!r}: {parent} is neither a mapping nor a list that long"
    raise ScenarioError(Problem(message=message, where=Location(file=said)))


def _short(value: Any) -> str:
    text = one_line(str(value))
    return text if len(text) <= 40 else text[:37] + "..."
