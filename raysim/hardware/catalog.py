"""The hardware catalog: datasheets by name from ``catalog/*.yaml``, with basis and source.

A predicted number is only as good as the row it came from, so the files say for every value
whether it was measured, stands in a datasheet or is assumed, and where (``sources.yaml``); every
spec built here carries that along (``provenance_rows``). Names are those the providers use
(``p5.48xlarge``, ``a3-highgpu-8g``, ``Standard_ND96isr_H100_v5``); case does not matter.

The files are YAML in a strict subset (records, fields, flow lists of plain words, tables), read
here directly: a YAML library takes a second for all of them, this reader a few milliseconds, and
only the records asked for are built. A test holds the two readers equal.

Not modelled: spot and committed prices. What "up to 10 Gb/s" lasts for counts in the length of
training jobs (``workloads/credits.py``); elsewhere it is taken at its word.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from raysim.errors import Problem, ScenarioError
from raysim.hardware.specs import (
    Basis,
    CpuRankSpec,
    CpuSpec,
    DiskSpec,
    GpuSpec,
    NicSpec,
    NodeSpec,
    ObjectStorageSpec,
    Provenance,
    Spec,
)
from raysim.units import parse_bytes, parse_bytes_per_s, parse_seconds

Kind = Literal["gpu", "nic", "disk", "object_storage", "cpu", "node"]
Field = str | list[str]
Record = dict[str, Field]
SpecT = TypeVar("SpecT", bound=Spec)

_FOLDER = Path(__file__).with_name("catalog")
_FILES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpus.yaml", "gpus_cards.yaml", "cpu_ranks.yaml"),
    "nic": ("nics.yaml",),
    "disk": ("disks.yaml",),
    "object_storage": ("object_storage.yaml",),
    "cpu": ("cpus.yaml",),
    "node": (
        "nodes_generic.yaml",
        "nodes_cards.yaml",
        "nodes_aws.yaml",
        "nodes_aws_gpu.yaml",
        "nodes_gcp.yaml",
        "nodes_azure.yaml",
    ),
}
_CLASSES: Mapping[str, type[Spec]] = {
    "gpu": GpuSpec,
    "nic": NicSpec,
    "disk": DiskSpec,
    "object_storage": ObjectStorageSpec,
}
_HEAD = re.compile(r"^([^\s#:][^:]*):", re.MULTILINE)
_ROW = re.compile(r"^    ([^\s#:][^:]*): \[(.*)\]$", re.MULTILINE)
_ALIASES = re.compile(r"^  aliases: \[(.*)\]$", re.MULTILINE)
LEFT_OUT = "left out of its description: as "
"""Source of a number that a described part has from another one."""
_PREFIXES = ("nvidia-", "tesla-", "amd-instinct-", "amd-")


class ProvenanceRow(NamedTuple):
    """One number used, and where it is from."""

    spec: str
    field: str
    value: Any
    basis: Basis
    source: str


# ---- reading the files ---------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    """The plain words of a flow list, without its brackets."""
    return [word.strip() for word in text.split(",")]


def _record(block: str) -> Record:
    """The fields of one record: the ``key: value`` lines below its name, two spaces in."""
    out: Record = {}
    for line in block.splitlines()[1:]:
        if line.startswith("  ") and line[2] not in " #":
            key, _, text = line[2:].partition(": ")
            out[key] = _words(text[1:-1]) if text.startswith("[") else text
    return out


@cache
def _blocks(file: str) -> dict[str, str]:
    """Text of each top-level record of a file, unparsed."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    starts = [(m[1], m.start()) for m in _HEAD.finditer(text)]
    ends = [*(start for _, start in starts[1:]), len(text)]
    return {name: text[start:end] for (name, start), end in zip(starts, ends, strict=False)}


@cache
def _source(name: str) -> str:
    """Full text of a source's short name."""
    line = _blocks("sources.yaml")[name].splitlines()[0]
    return line.partition(": ")[2]


@cache
def _index(kind: Kind) -> dict[str, tuple[str, str]]:
    """Spec name -> (file, block). A block with ``rows`` is a table of specs."""
    out: dict[str, tuple[str, str]] = {}
    for file in _FILES[kind]:
        for name, block in _blocks(file).items():
            table = "\n  rows:\n" in block
            for row in [m[1] for m in _ROW.finditer(block)] if table else [name]:
                assert row not in out, f"{file}: {row} is defined twice"
                out[row] = (file, name)
    return out


@cache
def _aliases(kind: Kind) -> dict[str, str]:
    """Lower-case name or alias -> spec name."""
    out = {name.lower(): name for name in _index(kind)}
    for name, (file, head) in _index(kind).items():
        match = _ALIASES.search(_blocks(file)[head])
        for alias in _words(match[1]) if match else ():
            known = out.setdefault(alias.lower(), name)
            assert known == name, f"{file}: {alias} names both {known} and {name}"
    return out


def _table_row(table: Record, block: str, name: str) -> Record:
    """One row of a table as a record of its own, its provenance taken from the column heads."""
    cells = next(_words(m[2]) for m in _ROW.finditer(block) if m[1] == name)
    out = {k: v for k, v in table.items() if k not in ("columns", "basis", "sources", "rows:")}
    heads = (table["columns"], cells, table["basis"], table["sources"])
    for column, value, basis, source in zip(*heads, strict=True):
        out[column] = [value, basis, source]
    return out


def _read(kind: Kind, name: str) -> tuple[dict[str, str], dict[str, Provenance]]:
    """Fields of one spec as text, and the provenance of those that have one."""
    file, head = _index(kind)[name]
    block = _blocks(file)[head]
    record = _record(block)
    if "columns" in record:
        record = _table_row(record, block, name)
    record.pop("aliases", None)
    values: dict[str, str] = {}
    provenance: dict[str, Provenance] = {}
    for key, entry in record.items():
        if isinstance(entry, str):
            values[key] = entry
        else:
            values[key], basis, source = entry
            assert basis in get_args(Basis), f"{file}: {name}: {key}: basis {basis}"
            provenance[key] = Provenance(basis=basis, source=_source(source))  # type: ignore[arg-type]
    return values, provenance


# ---- building specs ------------------------------------------------------------------------------


def _parse(key: str, kind: str, text: str) -> Any:
    """A field's value from its text, by the unit its name ends in, else by its declared type."""
    if "bytes_per_s" in key:
        return parse_bytes_per_s(text)
    if key.endswith("_bytes"):
        return parse_bytes(text)
    if key in ("latency_s", "dispatch_s", "gloo_latency_s"):
        return parse_seconds(text)
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float") or key == "flops_per_s":
        return float(text)
    return text == "true" if kind == "bool" else text


def _build(
    cls: type[SpecT], name: str, values: Mapping[str, str], provenance: Mapping[str, Provenance]
) -> SpecT:
    """The spec of class ``cls`` whose fields ``values`` spells out."""
    types = {f.name: str(f.type) for f in fields(cls)}
    arguments: dict[str, Any] = {}
    for key, text in values.items():
        table, _, column = key.partition(".")
        if column:
            arguments.setdefault(table, {})[column] = _parse(table, types[table], text)
        else:
            arguments[key] = _parse(key, types[key], text)
    return cls(name=name, provenance=dict(provenance), **arguments)


def _resolve(kind: Kind, name: str) -> str:
    """The spec's own name for a name or alias, in any case, or as ``nvidia-smi`` spells it."""
    aliases = _aliases(kind)
    said = "-".join(name.lower().split())
    known = aliases.get(said) or aliases.get(said.removeprefix("nvidia-"))
    if known is None:
        near = difflib.get_close_matches(name.lower(), aliases, n=4, cutoff=0.5)
        nearest = dict.fromkeys(aliases[n] for n in near)
        hint = f"nearest: {', '.join(nearest)}" if nearest else f"one of {len(_index(kind))} names"
        what = kind.replace("_", " ")
        raise ScenarioError(Problem(message=f"unknown {what} {name!r} ({hint}{_more(kind)})"))
    return known


def _more(kind: Kind) -> str:
    """Where to look further, and how to add what is not there."""
    if kind not in ("node", "gpu"):
        return ""
    here = "; a scenario may describe it, `raysim check --explain cluster.gpu`" * (kind == "gpu")
    return f"; `raysim catalog {kind}s` has all, raysim/docs/extending.md says how to add one{here}"


@cache
def _spec(kind: Kind, name: str) -> Any:
    """The spec called exactly ``name``; one object per spec, whatever alias it was asked by."""
    values, provenance = _read(kind, name)
    cls = CpuRankSpec if values.get("architecture") == "cpu" else _CLASSES[kind]
    return _build(cls, name, values, provenance)


@cache
def _host_cpu(name: str) -> CpuSpec:
    """A whole host's processors."""
    values, provenance = _read("cpu", name)
    return _build(CpuSpec, name, values, provenance)


def _slice_cpu(host: CpuSpec, vcpus: int) -> CpuSpec:
    """The share of a host's processors that an instance of ``vcpus`` gets.

    Memory bandwidth and peak go with the cores: what a neighbour leaves free is not counted on.
    """
    name = host.name
    cores = max(1, vcpus // host.threads_per_core)
    if cores >= host.cores:
        return host
    share = cores / host.cores
    note = f"{cores} of the {host.cores} cores of {name}"
    provenance = {
        key: Provenance(basis=origin.basis, source=f"{note}: {origin.source}")
        for key, origin in host.provenance.items()
    }
    return replace(
        host,
        name=f"{name}/{cores}",
        provenance=provenance,
        sockets=math.ceil(host.sockets * share),
        cores=cores,
        memory_bytes_per_s=host.memory_bytes_per_s * share,
        flops_per_s=host.flops_per_s * share,
    )


def _disks(text: str) -> tuple[tuple[DiskSpec, int], ...]:
    """``8x nvme-aws-3840 + 1x ebs-gp3`` as specs with counts."""
    pairs = (part.strip().split("x ", 1) for part in text.split("+"))
    return tuple((disk(name), int(count)) for count, name in pairs)


@cache
def _node(name: str) -> NodeSpec:
    """The node called exactly ``name``, with its parts."""
    values, provenance = _read("node", name)
    host = _host_cpu(values.pop("cpu"))
    if "threads_per_core" in values:  # as the provider offers these processors
        origin = {"threads_per_core": provenance.pop("threads_per_core")}
        host = replace(
            host,
            threads_per_core=int(values.pop("threads_per_core")),
            provenance={**host.provenance, **origin},
        )
    parts: dict[str, Any] = {
        "cpu": _slice_cpu(host, int(values["vcpus"])),
        "nic": nic(values.pop("nic")),
        "disks": _disks(values.pop("disks")),
    }
    if "gpu" in values:
        parts["gpu"] = gpu(values.pop("gpu"))
    if "host_nic" in values:
        parts["host_nic"] = nic(values.pop("host_nic"))
    types = {f.name: str(f.type) for f in fields(NodeSpec)}
    plain = {key: _parse(key, types[key], text) for key, text in values.items()}
    return NodeSpec(name=name, provenance=provenance, **plain, **parts)


# ---- the door ------------------------------------------------------------------------------------


def gpu(name: str) -> GpuSpec:
    """The accelerator called ``name`` (``H100-SXM-80GB``, ``h100``, ``a100-40gb``).

    Raises
    ------
    ScenarioError
        No such accelerator; the message has the nearest names. The same holds for all below.
    """
    spec: GpuSpec = _spec("gpu", _resolve("gpu", name))
    return spec


def nic(name: str) -> NicSpec:
    """The network interface called ``name`` (``ib-ndr-400``, ``ena-25``, ``efa-v2-100``)."""
    spec: NicSpec = _spec("nic", _resolve("nic", name))
    return spec


def disk(name: str) -> DiskSpec:
    """The disk or volume called ``name`` (``ebs-gp3``, ``nvme-gen4``)."""
    spec: DiskSpec = _spec("disk", _resolve("disk", name))
    return spec


def object_storage(name: str) -> ObjectStorageSpec:
    """The bucket service called ``name`` (``s3``, ``gcs``, ``azure-blob``)."""
    spec: ObjectStorageSpec = _spec("object_storage", _resolve("object_storage", name))
    return spec


def cpu(name: str) -> CpuSpec:
    """All processors of one whole host (``2x-xeon-8480c``); a node has its share of one."""
    return _host_cpu(_resolve("cpu", name))


def node(name: str) -> NodeSpec:
    """The host or instance type called ``name`` (``hgx-h100-8``, ``g4dn.12xlarge``)."""
    return _node(_resolve("node", name))


def names(kind: Kind) -> list[str]:
    """Every spec name of one kind, in the order of the files."""
    if kind not in _FILES:
        raise ScenarioError(f"unknown kind {kind!r} (one of {', '.join(_FILES)})")
    return list(_index(kind))


def gpu_from_accelerator_type(accelerator_type: str) -> GpuSpec:
    """The GPU that Ray, Kubernetes or a driver means by ``accelerator_type``.

    Takes the constants of ``ray.util.accelerators`` by name or value (``NVIDIA_TESLA_V100``,
    ``A100-80G``), Ray's resource (``accelerator_type:H100``), node labels of GKE and the NVIDIA
    device plugin (``nvidia-h100-80gb``, ``NVIDIA-A100-SXM4-80GB``). A bare ``A100`` is the 80 GB
    part, as ``gpu`` has it; GKE's ``nvidia-tesla-a100`` is the 40 GB one.
    """
    aliases = _aliases("gpu")
    text = accelerator_type.strip().lower().replace("_", "-").replace(" ", "-")
    text = text.replace("accelerator-type:", "")
    while text not in aliases:
        prefix = next((p for p in _PREFIXES if text.startswith(p)), None)
        if prefix is None:
            break
        text = text.removeprefix(prefix)
    return gpu(text if text in aliases else accelerator_type)


def left_to(spec: Spec) -> tuple[str, ...]:
    """Specs that give what a description of ``spec`` left out; none for those of the catalog."""
    sources = (origin.source for origin in spec.provenance.values())
    return tuple(dict.fromkeys(s.removeprefix(LEFT_OUT) for s in sources if LEFT_OUT in s))


def provenance_rows(specs: Iterable[Spec]) -> list[ProvenanceRow]:
    """One row per number of ``specs`` and of the parts of those that are nodes, each spec once."""
    pending = list(specs)
    seen: dict[tuple[type[Spec], str], Spec] = {}
    for spec in pending:
        if seen.setdefault((type(spec), spec.name), spec) is spec and isinstance(spec, NodeSpec):
            parts = (spec.cpu, spec.gpu, spec.nic, spec.host_nic, *(d for d, _ in spec.disks))
            pending += [part for part in parts if part]
    return [
        ProvenanceRow(spec.name, key, _value_of(spec, key), origin.basis, origin.source)
        for spec in seen.values()
        for key, origin in spec.provenance.items()
    ]


def _value_of(spec: Spec, key: str) -> Any:
    """A field's value; parts by name, ``flops_per_s.bf16`` from its mapping."""
    attribute, _, column = key.partition(".")
    value = getattr(spec, attribute)
    if attribute == "disks":
        return " + ".join(f"{count}x {part.name}" for part, count in value)
    if isinstance(value, Spec):
        return value.name
    return value[column] if column else value
