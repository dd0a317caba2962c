"""``raysim catalog``: the hardware and models raysim knows, with the basis of each number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from raysim.cli import terminal
from raysim.errors import ScenarioError
from raysim.hardware import catalog as hardware
from raysim.hardware.specs import DiskSpec, GpuSpec, NicSpec, NodeSpec, Spec
from raysim.units import format_bytes, format_bytes_per_s

Cells = dict[str, str]
_WORDS = {"name", "architecture", "kind", "provider", "gpus", "nics", "basis", "scale-up"}


def catalog(kind: str | None, name: str | None) -> None:
    """List kinds, the entries of one kind, or every number of one entry with its source.

    Raises
    ------
    ScenarioError
        The kind or the name is unknown; says the nearest.
    """
    kind = kind if kind is None or kind.endswith("s") else f"{kind}s"
    if kind is None:
        counts = [[k, str(len(hardware.names(_SINGULAR[k])))] for k in _SINGULAR]
        counts.append(["models", str(len(_model_types()))])
        terminal.table(["kind", "entries"], counts, right={"entries"})
    elif kind == "models":
        _models(name)
    elif kind not in _SINGULAR:
        raise ScenarioError(f"unknown kind {kind!r}; one of {', '.join(_SINGULAR)}, models")
    elif name is None:
        _list(kind)
    else:
        _detail(_GET[kind](name))


def _list(kind: str) -> None:
    get, describe = _GET[kind], _DESCRIBE[kind]
    specs = [get(name) for name in hardware.names(_SINGULAR[kind])]
    rows = [{"name": s.name} | describe(s) | {"basis": basis([s])} for s in specs]
    headers = list(rows[0])
    terminal.table(headers, [list(r.values()) for r in rows], right=set(headers) - _WORDS)


def _detail(spec: Spec) -> None:
    """Every number of one entry and of its parts."""
    rows = [
        [f"{r.spec}  {r.field}", _number(r.value), r.basis, r.source]
        for r in hardware.provenance_rows([spec])
    ]
    terminal.table([spec.name, "value", "basis", "source"], rows, right={"value"})


def _models(name: str | None) -> None:
    known = _model_types()
    if name is not None and name not in known:
        raise ScenarioError(f"unknown model_type {name!r}; known: {', '.join(known)}")
    for model_type in known if name is None else (name,):
        terminal.say(model_type)


def _model_types() -> tuple[str, ...]:
    from raysim.models.huggingface import known_model_types

    return known_model_types()


def basis(specs: Iterable[Spec]) -> str:
    """``8 datasheet, 2 assumed``: how many numbers of these entries stand on what."""
    counts = Counter(p.basis for spec in specs for p in spec.provenance.values())
    return ", ".join(f"{n} {kind}" for kind, n in counts.most_common())


def _gpu(spec: GpuSpec) -> Cells:
    peak = spec.flops_per_s.get("bf16") or spec.flops_per_s.get("fp16") or 0.0
    return {
        "architecture": spec.architecture,
        "memory": format_bytes(spec.memory_bytes),
        "bandwidth": format_bytes_per_s(spec.memory_bytes_per_s),
        "16-bit TFLOP/s": f"{peak / 1e12:,.0f}",
        "scale-up": f"{spec.scale_up} {format_bytes_per_s(spec.scale_up_bytes_per_s)}"
        if spec.scale_up
        else "-",
    }


def _nic(spec: NicSpec) -> Cells:
    return {
        "kind": spec.kind,
        "rate": f"{spec.bytes_per_s * 8 / 1e9:,.0f} Gb/s",
        "latency": f"{spec.latency_s * 1e6:.3g} us",
    }


def _disk(spec: DiskSpec) -> Cells:
    return {
        "kind": spec.kind,
        "capacity": format_bytes(spec.capacity_bytes),
        "read": format_bytes_per_s(spec.read_bytes_per_s),
        "write": format_bytes_per_s(spec.write_bytes_per_s),
    }


def _node(spec: NodeSpec) -> Cells:
    nic_gbit_per_s = spec.nic.bytes_per_s * 8 / 1e9
    return {
        "provider": spec.provider,
        "gpus": f"{spec.gpu_count} x {spec.gpu.name}" if spec.gpu else "-",
        "vCPUs": str(spec.vcpus),
        "memory": format_bytes(spec.memory_bytes),
        "nics": f"{spec.nic_count} x {nic_gbit_per_s:,.0f} Gb/s",
        "usd/h": "-" if spec.usd_per_hour is None else f"{spec.usd_per_hour:,.2f}",
    }


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


_SINGULAR: dict[str, Any] = {"gpus": "gpu", "nics": "nic", "disks": "disk", "nodes": "node"}
_GET: dict[str, Callable[[str], Any]] = {
    "gpus": hardware.gpu,
    "nics": hardware.nic,
    "disks": hardware.disk,
    "nodes": hardware.node,
}
_DESCRIBE: dict[str, Callable[[Any], Cells]] = {
    "gpus": _gpu,
    "nics": _nic,
    "disks": _disk,
    "nodes": _node,
}
