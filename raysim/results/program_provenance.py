"""How far to trust a Ray program's prediction: its inputs by basis, and what it leaves out."""

from __future__ import annotations

from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cores import SMT_PROVENANCE, SMT_YIELD
from raysim.perf.ray_core import RayCosts
from raysim.raycore.cloud import PHASES, NodeStart
from raysim.results import libraries
from raysim.results.provenance import counted
from raysim.workloads.program_run import ProgramOutcome

_MICROBENCHMARKS = "Ray 2.48.0 release microbenchmarks, m5.16xlarge"
_INFERRED = "order of magnitude of such work; no measurement"
_RAY: tuple[tuple[str, str, str, str], ...] = (
    ("submit_task_ns", "measured", _MICROBENCHMARKS, ""),
    ("submit_actor_task_ns", "measured", _MICROBENCHMARKS, ""),
    ("get_ns", "measured", _MICROBENCHMARKS, ""),
    ("put_ns", "measured", _MICROBENCHMARKS, ""),
    ("per_ref_wait_ns", "measured", _MICROBENCHMARKS, ""),
    ("memcpy_bytes_per_s", "measured", _MICROBENCHMARKS, ""),
    ("first_touch_bytes_per_s", "measured", _MICROBENCHMARKS, ""),
    ("grpc_same_host_ns", "measured", _MICROBENCHMARKS, ""),
    ("execute_ns", "measured", _MICROBENCHMARKS, ""),
    ("raylet_lease_ns", "measured", f"{_MICROBENCHMARKS}; the sum of a lease", ""),
    ("gcs_placement_group_ns", "measured", _MICROBENCHMARKS, ""),
    ("grpc_cross_host_extra_ns", "assumed", _INFERRED, "nodes"),
    ("copy_bytes_per_s", "measured", "ray 2.60 on a Xeon of 2 cores, 2026-11", "moved"),
    ("spill_bytes_per_s", "assumed", _INFERRED, "spilled"),
    ("spill_again_bytes_per_s", "assumed", _INFERRED, "spilled"),
    ("restore_bytes_per_s", "measured", "ray 2.60 on a Xeon of 2 cores, 2026-11", "spilled"),
    ("restore_ns", "measured", "ray 2.60 on an EPYC of 2 cores, 2026-11", "spilled"),
    ("worker_start_core_s", "assumed", _INFERRED, ""),
)
"""Field of ``RayCosts``, basis, source, and when it matters."""
_OF_LAUNCHED = ("grpc_cross_host_extra_ns", "worker_start_core_s")
"""Of a launcher's ranks, which call nothing of Ray."""
_ALWAYS = {"vcpus", "memory_bytes", "usd_per_hour"}
_BETWEEN = {"bytes_per_s", "latency_s", "efficiency"}
_DISK = {"read_bytes_per_s", "write_bytes_per_s"}


def compute_basis(outcome: ProgramOutcome) -> dict[str, Any]:
    """Where the time of the program's own code comes from."""
    job = outcome.job
    text = {
        "declared": "as declared: time.sleep and raysim's cost() count, other code takes no time",
        "measured": f"measured on this host, cores of the cluster {job.node_speed:g} times as fast",
        "drawn": "as the workload says; nothing of the user's is run",
        "table": f"replayed from {job.compute_table.name if job.compute_table else 'a table'}",
    }[job.compute]
    return {"mode": job.compute, "node_speed": job.node_speed, "text": text}


def simplifications(outcome: ProgramOutcome) -> list[str]:
    """What this prediction leaves out, in the user's words."""
    job, spec = outcome.job, outcome.cluster.spec
    if job.launched is not None:
        return libraries.simplifications(outcome.reports)
    said = []
    if job.compute == "declared":
        said.append("Code that declares no cost takes no time; only Ray's own calls do.")
    elif job.workload is not None:
        said.append("Tasks are a generated workload: values have a size and no content.")
    elif job.compute == "measured":
        said.append(
            "User code was timed on this host, one process at a time: shared caches and memory"
            " bandwidth are not in it, and another run differs by its noise."
        )
    own = "Ray's own service times"
    if job.costs != RayCosts():
        own = "Service times of Ray that the profile does not name"
    said.append(f"{own} are those of one machine type (m5.16xlarge).")
    if len(spec.nodes) > 1:
        said.append("Objects move as fluid flows: no TCP slow start, no packet loss.")
    if outcome.cluster.cloud.launches:
        said.append("How long machines take to come is assumed, but where the scenario says it.")
    if job.spot:
        taken = len(outcome.faults) - len(job.faults)
        went = f"{taken:,} {'was' if taken == 1 else 'were'} taken back"
        said.append(f"When spot nodes go is one draw ({went}); another --seed draws others.")
    if job.submissions and not any(its.own_cluster for its in job.submissions):
        said.append("Jobs share the cluster as it stands: its own start is not in their times.")
    if any(its.own_cluster and its.paid_after_s is None for its in job.submissions):
        said.append("Nobody shuts the RayJob's cluster down: what it costs afterwards is left out.")
    said += libraries.simplifications(outcome.reports)
    if outcome.cluster.env.config.gcs_storage == "memory":
        said.append("The GCS keeps its tables in memory: losing it or its node ends the cluster.")
    return said


def trust(outcome: ProgramOutcome) -> dict[str, Any]:
    """The ``trust`` part of the summary: counts by basis, and every input."""
    many = len(outcome.cluster.spec.nodes) > 1
    matters = {"": True, "nodes": many, "moved": many, "spilled": _spilled(outcome)}
    costs = outcome.cluster.env.costs
    inputs = [
        {"name": f"Ray {field}", "value": getattr(costs, field), "basis": basis, "source": source}
        for field, basis, source, when in _RAY
        if matters[when] and (outcome.job.launched is None or field in _OF_LAUNCHED)
    ]
    inputs += [
        {
            "name": f"{row.spec} {row.field}", "value": row.value, "basis": row.basis,
            "source": row.source,
        }
        for row in _catalog_rows(outcome, many=many)
    ]  # fmt: skip
    if any(node.cpu.threads_per_core > 1 for node in outcome.cluster.spec.nodes):
        basis, source = SMT_PROVENANCE.basis, SMT_PROVENANCE.source
        inputs.append({
            "name": "threads of one core, over one alone", "value": SMT_YIELD, "basis": basis,
            "source": source,
        })  # fmt: skip
    inputs += _machines(outcome)
    compute = compute_basis(outcome)
    basis = "measured" if compute["mode"] in {"measured", "table"} else "assumed"
    source = {
        "declared": "the program", "drawn": "the scenario (workload)",
        "measured": "a stopwatch on this host", "table": "a stopwatch, in an earlier run",
    }[compute["mode"]]  # fmt: skip
    inputs.append(
        {"name": "time of user functions", "value": None, "basis": basis, "source": source}
    )
    if compute["mode"] == "measured":
        inputs.append({
            "name": "node_speed", "value": outcome.job.node_speed, "basis": "assumed",
            "source": "the scenario (ray.node_speed)",
        })  # fmt: skip
    inputs += libraries.inputs(outcome.reports)
    return counted(inputs, past_error=None)


def _machines(outcome: ProgramOutcome) -> list[dict[str, Any]]:
    """How machines come and go."""
    clouds, groups = outcome.job.clouds, outcome.cluster.cloud.launches
    inputs = [
        {
            "name": f"start of {name}: {phase}", "basis": "assumed",
            "value": getattr(clouds.starts.get(name, NodeStart()), phase).median_s,
            "source": "raycore/cloud.py, or the scenario (starts)",
        }
        for name in dict.fromkeys(launch.node_type for launch in groups)
        for phase in PHASES
    ]  # fmt: skip
    return inputs + [
        {
            "name": f"spot {name}: per hour", "value": its.per_hour, "basis": "assumed",
            "source": "the scenario (spot)",
        }
        for name, its in outcome.job.spot.items()
    ]  # fmt: skip


def _spilled(outcome: ProgramOutcome) -> bool:
    return any(row.kind == "object" and row.state == "SPILLED" for row in outcome.log.rows)


def _catalog_rows(outcome: ProgramOutcome, *, many: bool) -> list[catalog.ProvenanceRow]:
    """Numbers of the catalog that can have influenced the run."""
    spilled = _spilled(outcome)
    found: dict[tuple[str, str], catalog.ProvenanceRow] = {}
    for group in outcome.cluster.spec.groups:
        node = group.node
        disks = [disk for disk, _ in node.disks]
        wanted = {node.name: _ALWAYS, node.nic.name: _BETWEEN if many else set()}
        wanted |= {disk.name: _DISK if spilled else set() for disk in disks}
        for row in catalog.provenance_rows([node, node.nic, *disks]):
            if row.field in wanted.get(row.spec, ()):
                found[row.spec, row.field] = row
    return list(found.values())
