"""Real training steps of a data folder beside raysim's predictions: collectives, memory, time.

A folder holds ``training_cases.json`` (what ran: Hugging Face config and DeepSpeed JSON per case),
``training_records.json`` (collectives and memory of the last step), and the step times in
``training_steps_calibration.csv`` and ``training_steps_validation.csv``; ``cpu_rank.json`` has the
constants that were fitted on the former.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysim.calibrate.fit import Fit, fit
from raysim.calibrate.parameters import Parameter
from raysim.calibrate.rows import Measured, Role
from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.specs import Provenance
from raysim.kernel.simulation import Simulation
from raysim.measure.table import read_rows
from raysim.perf.cpu_rank import CpuRankSpec, GlooSpec, cpu_rank
from raysim.training.executor import Timeline
from raysim.training.program import Kind, Program
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.training_plans import plan_of

GIB = 2**30
PHASES = ("forward", "backward", "step", "total")
ENGINES = ("ddp", "deepspeed", "pipeline")
"""What raysim plays; FSDP2 is only recorded."""
PRIORS = {
    "product_flops_per_s": 60e9,
    "memory_bytes_per_s": 8e9,
    "optimizer_bytes_per_s": 8e9,
    "dispatch_s": 10e-6,
    "gloo_latency_s": 200e-6,
    "gloo_bytes_per_s": 1e9,
    "hook_s": 190e-6,
    "engine_s": 400e-6,
}
"""Constants that a fit of CPU ranks may change, and where it starts: one core of a server of the
2020s. ``engine_s`` is DeepSpeed's Python per pass, twice that per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One number, predicted and measured."""

    family: str
    """``collectives``, ``memory`` or ``step time``."""
    case: str
    row: str
    unit: str
    predicted: float
    measured: float
    low: float
    high: float
    """10th and 90th percentile over repetitions; the value itself where it is exact."""
    role: Role = "validation"

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        if self.measured == 0.0:
            return 0.0 if self.predicted == 0.0 else float("inf")
        return self.predicted / self.measured - 1.0


def rank_of(values: Mapping[str, float], memory_bytes: int = 8 * GIB) -> CpuRankSpec:
    """The device that these constants describe."""
    return cpu_rank(
        name="CPU rank",
        memory_bytes=memory_bytes,
        product_flops_per_s=values["product_flops_per_s"],
        memory_bytes_per_s=values["memory_bytes_per_s"],
        optimizer_bytes_per_s=values["optimizer_bytes_per_s"],
        dispatch_s=values["dispatch_s"],
        gloo=GlooSpec(
            latency_s=values["gloo_latency_s"], bytes_per_s=values["gloo_bytes_per_s"]
        ),
        provenance=Provenance(basis="measured", source="fitted on measured steps of one model"),
    )  # fmt: skip


def host(rank: CpuRankSpec, ranks: int) -> ClusterSpec:
    """One machine with so many ranks."""
    node = replace(
        catalog.node("m5.2xlarge"), gpu=rank, gpu_count=ranks, gpu_fabric="pcie", nic_count=1
    )
    return ClusterSpec(groups=(NodeGroup(name="host", node=node, count=1),))


def play(
    case: Mapping[str, Any], values: Mapping[str, float], *, steps: int | None = None
) -> StepOutcome:
    """The case's steady step on CPU ranks with these constants."""
    plan = plan_of(case)
    engine_s = values["engine_s"]
    given = replace(
        plan.constants, hook_s=values["hook_s"], engine_pass_s=engine_s,
        engine_step_s=2 * engine_s, instruction_s=engine_s,
    )  # fmt: skip
    cluster = host(rank_of(values), case["ranks"])
    return simulate(
        replace(plan, constants=given), cluster, simulation=Simulation(), steps=steps, memory=False
    )


def phase_seconds(outcome: StepOutcome) -> dict[str, float]:
    """Forward, backward with its reductions, step; a pipeline's are one."""
    found = {"total": outcome.steady_step_ns * 1e-9}
    if outcome.plan.mesh.pp > 1 or outcome.plan.gradient_accumulation_steps > 1:
        return found
    line = outcome.slowest
    first = line.program.step_ends[-2]
    begin, end = line.step_window(len(line.program.step_ends) - 1)
    backward = _starts(line, first, "backward", begin)
    step = _starts(line, first, "optimizer", end)
    seconds = (backward - begin, step - backward, end - step)
    return dict(zip(PHASES, (s * 1e-9 for s in seconds), strict=False)) | found


def _starts(line: Timeline, first: int, category: str, otherwise: int) -> int:
    for i in range(first, len(line.program.ops)):
        if line.program.ops[i].category == category:
            return line.start_ns[i]
    return otherwise


def read_steps(folder: Path) -> list[Measured]:
    """Step times of a folder, calibration rows first; the key is (case, phase)."""
    rows = []
    roles: tuple[Role, ...] = ("calibration", "validation")
    for role in roles:
        path = folder / f"training_steps_{role}.csv"
        for row in read_rows(path) if path.exists() else ():
            rows += [
                Measured(
                    key=(row.parameters["case"], row.parameters["phase"]), role=role,
                    value=row.value, unit=row.unit, repetitions=row.repetitions,
                    low=row.low, high=row.high, family="step time",
                )
            ]  # fmt: skip
    return rows


def read_cases(folder: Path) -> dict[str, dict[str, Any]]:
    """Cases of a folder by name."""
    text = (folder / "training_cases.json").read_text(encoding="utf-8")
    return {case["name"]: case for case in json.loads(text)}


def predict_steps(
    cases: Sequence[Mapping[str, Any]], values: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """Seconds of every phase of every case, by (case, phase)."""
    return {
        (case["name"], phase): seconds
        for case in cases
        for phase, seconds in phase_seconds(play(case, values)).items()
    }


def fit_cpu_rank(folder: Path) -> Fit:
    """Constants of this host's ranks from the folder's calibration rows.

    Raises
    ------
    CalibrationError
        The folder has no calibration rows.
    """
    cases = read_cases(folder)
    rows = [r for r in read_steps(folder) if r.role == "calibration" and r.key[1] in PHASES]
    if not rows:
        raise CalibrationError(f"{folder}: no rows in training_steps_calibration.csv")
    used = [cases[name] for name in dict.fromkeys(row.key[0] for row in rows)]
    parameters = [
        Parameter(name=name, prior=prior, lower=prior / 10, upper=prior * 10)
        for name, prior in PRIORS.items()
    ]
    return fit(parameters, lambda values: predict_steps(used, values), rows)


def write_cpu_rank(folder: Path) -> Fit:
    """Fit, and leave ``cpu_rank.json`` beside the rows: values, and which were determined."""
    found = fit_cpu_rank(folder)
    content = {
        "values": found.values,
        "rows": [list(r.key) for r in read_steps(folder) if r.role == "calibration"],
    }
    path = folder / "cpu_rank.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return found


def compare_steps(folder: Path, values: Mapping[str, float] | None = None) -> list[Compared]:
    """Step times beside their predictions; ``values`` None: those of ``cpu_rank.json``."""
    if values is None:
        values = json.loads((folder / "cpu_rank.json").read_text(encoding="utf-8"))["values"]
    cases = read_cases(folder)
    rows = [row for row in read_steps(folder) if row.key[1] in PHASES]
    predicted = predict_steps([cases[n] for n in dict.fromkeys(r.key[0] for r in rows)], values)
    return [
        Compared(
            family="step time", case=row.key[0], row=row.key[1], unit="s",
            predicted=predicted[row.key], measured=row.value,
            low=row.low or row.value, high=row.high or row.value, role=row.role,
        )
        for row in rows
    ]  # fmt: skip


def _calls(program: Program) -> Counter[tuple[str, int]]:
    """Collectives and messages of the last step, by kind and bytes."""
    return Counter(
        (op.call.op if op.kind == Kind.COLLECTIVE else op.kind.name.lower(), op.call.size_bytes)
        for op in program.ops[program.step_ends[-2] :]
        if op.call is not None
    )


def compare_collectives(file: Path) -> Iterator[Compared]:
    """Number and bytes of the collectives of recorded steps, per case, rank and kind."""
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        if case["engine"] not in ENGINES:
            continue
        outcome = play(case, PRIORS, steps=3)
        for line in outcome.timelines:
            ours = _calls(line.program)
            theirs: Counter[tuple[str, int]] = Counter()
            for _, op, size, times in case["records"][line.program.rank]["collectives"]:
                theirs[op, size] += times
            for op in sorted({name for name, _ in (*ours, *theirs)}):
                for unit in ("calls", "bytes"):
                    a, b = (_sum(found, op, unit) for found in (ours, theirs))
                    yield Compared(
                        family="collectives", case=f"{case['name']}, {case['ranks']} ranks",
                        row=f"rank {line.program.rank} {op}", unit=unit,
                        predicted=a, measured=b, low=b, high=b,
                    )  # fmt: skip


def _sum(found: Counter[tuple[str, int]], op: str, unit: str) -> float:
    return sum(n * (size if unit == "bytes" else 1) for (o, size), n in found.items() if o == op)


def compare(folder: Path) -> list[Compared]:
    """Every row of a data folder that raysim can predict; nothing where nothing was measured.

    ``folder`` is one of :func:`raysim.measure.training_step.measure`, or
    ``validation/data/deepspeed_cpu``.
    """
    found: list[Compared] = []
    if (folder / "huggingface.json").exists():
        found += compare_collectives(folder / "huggingface.json")
    if (folder / "cpu_rank.json").exists():
        found += compare_steps(folder)
    return found
