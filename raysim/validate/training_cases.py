"""Real training steps of a data folder beside raysim's predictions: collectives, memory, time.

A folder holds ``training_cases.json`` (what ran: Hugging Face config and DeepSpeed JSON per case),
``training_records.json`` (collectives and memory of the last step), and the step times in
``training_steps_calibration.csv`` and ``training_steps_validation.csv``; ``training_profile.yaml``
has the constants that ``raysim calibrate --family training`` fitted on the former.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.calibrate.rows import Measured, Role
from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.measure.table import read_meta, read_rows
from raysim.perf.profile import OWN, Constant, Profile, unit_of
from raysim.scenario.profile import on_cluster, profile_at
from raysim.training.executor import Timeline
from raysim.training.program import Kind, Program
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.points import Point
from raysim.validate.training_plans import plan_of

PHASES = ("forward", "backward", "step", "total")
ENGINES = ("ddp", "fsdp1", "fsdp2", "deepspeed", "pipeline")
"""What raysim plays."""
FITTED = (
    "product_flops_per_s", "memory_bytes_per_s", "optimizer_bytes_per_s",
    "optimizer_far_bytes_per_s", "dispatch_s",
    "gloo_latency_s", "gloo_bytes_per_s", "gloo_staging_bytes_per_s",
    "gloo_fresh_bytes_per_s",
    "hook_s", "engine_pass_s", "engine_step_s", "instruction_s",
)  # fmt: skip
"""Constants that steps of ranks on the CPU respond to."""
PROFILE = "training_profile.yaml"
NODE = "cpu-ranks-2"
"""The catalog's host without a GPU, which has one rank per core."""


def profile_of(values: Mapping[str, float]) -> Profile:
    """These constants of section ``training`` as a profile."""
    said = {name: Constant(value=v, unit=unit_of(name)) for name, v in values.items()}
    return Profile(name="fit", training=said)


def host(ranks: int, profile: Profile = OWN) -> ClusterSpec:
    """One machine with so many ranks, each with a core."""
    node = replace(catalog.node(NODE), gpu_count=ranks, vcpus=ranks)
    return on_cluster(ClusterSpec(groups=(NodeGroup(name="host", node=node, count=1),)), profile)


def play(
    case: Mapping[str, Any],
    profile: Profile = OWN,
    *,
    steps: int | None = None,
    memory: bool = False,
) -> StepOutcome:
    """The case's steady step on CPU ranks with these constants."""
    plan = replace(plan_of(case), constants=profile.training_constants())
    return simulate(
        plan, host(case["ranks"], profile), simulation=Simulation(), steps=steps, memory=memory
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
            if row.parameters["phase"] in PHASES:
                rows += [
                    Measured(
                        key=(row.parameters["case"], row.parameters["phase"]), role=role,
                        value=row.value, unit=row.unit, repetitions=row.repetitions,
                        low=row.low, high=row.high, family="training",
                    )
                ]  # fmt: skip
    return rows


def read_cases(folder: Path) -> dict[str, dict[str, Any]]:
    """Cases of a folder by name."""
    text = (folder / "training_cases.json").read_text(encoding="utf-8")
    return {case["name"]: case for case in json.loads(text)}


def predict_steps(
    cases: Iterable[Mapping[str, Any]], profile: Profile = OWN
) -> dict[tuple[str, str], float]:
    """Seconds of every phase of every case, by (case, phase)."""
    return {
        (case["name"], phase): seconds
        for case in cases
        for phase, seconds in phase_seconds(play(case, profile)).items()
    }


def calibration_rows(folder: Path) -> list[Measured]:
    """What may be fitted.

    Raises
    ------
    CalibrationError
        The folder has no calibration rows.
    """
    rows = [row for row in read_steps(folder) if row.role == "calibration"]
    if not rows:
        raise CalibrationError(
            f"{folder}: no rows in training_steps_calibration.csv; `raysim measure step --cases "
            'FILE` makes them, of cases with "role": "calibration" (raysim/measure/README.md)'
        )
    return rows


def step_points(folder: Path) -> Iterator[Point]:
    """Step times beside their predictions, under the folder's own profile if it has one."""
    profile = profile_at(folder / PROFILE)
    cases = read_cases(folder)
    rows = [row for row in read_steps(folder) if cases[row.key[0]]["engine"] in ENGINES]
    names = dict.fromkeys(row.key[0] for row in rows)
    predicted = predict_steps([cases[name] for name in names], profile)
    for row in rows:
        case, phase = row.key
        if row.key in predicted:  # a pipeline's passes are interleaved: it has no phases
            yield Point(
                family=f"training/{'step' if phase == 'total' else 'phase'} time",
                name=f"{case} {phase}", role=row.role, unit="s", predicted=predicted[row.key],
                measured=row.value, low=row.low, high=row.high, repetitions=row.repetitions,
            )  # fmt: skip


def _calls(program: Program) -> Counter[tuple[str, int]]:
    """Collectives and messages of the last step, by kind and bytes."""
    return Counter(
        (op.call.op if op.kind == Kind.COLLECTIVE else op.kind.name.lower(), op.call.size_bytes)
        for op in program.ops[program.step_ends[-2] :]
        if op.call is not None
    )


def collective_points(file: Path) -> Iterator[Point]:
    """Number and bytes of the collectives of recorded steps, per case, rank and kind."""
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        if case["engine"] not in ENGINES:
            continue
        outcome = play(case, steps=3)
        for line in outcome.timelines:
            ours = _calls(line.program)
            theirs: Counter[tuple[str, int]] = Counter()
            for _, op, size, times in case["records"][line.program.rank]["collectives"]:
                theirs[op, size] += times
            for op in sorted({name for name, _ in (*ours, *theirs)}):
                for unit in ("calls", "bytes"):
                    a, b = (_sum(found, op, unit) for found in (ours, theirs))
                    yield Point(
                        family="training/collectives", role="validation", unit=unit,
                        name=f"{case['name']} {case['ranks']} ranks rank {line.program.rank} {op}",
                        predicted=a, measured=b,
                    )  # fmt: skip


def _sum(found: Counter[tuple[str, int]], op: str, unit: str) -> float:
    return sum(n * (size if unit == "bytes" else 1) for (o, size), n in found.items() if o == op)


def training_points(validation: Path) -> Iterator[Point]:
    """Time and memory of every step of CPU ranks, of the newest folder of each machine.

    Nothing where nothing was measured. Collectives are all equal, and a test holds that.
    """
    newest: dict[Path, Path] = {}
    for path in sorted((validation / "data").glob("*/*/training_cases.json")):
        if read_meta(path.parent)["hardware"]["gpus"]:
            continue  # ``gpu_steps``
        newest[path.parents[1]] = path.parent
    for folder in newest.values():
        yield from step_points(folder)
        yield from memory_points(folder)


HELD = ("parameter", "gathered_parameter", "optimizer_state")
"""After a step."""


def memory_points(folder: Path) -> Iterator[Point]:
    """Bytes by category that each rank holds after a step; of gradients, before the optimizer's.

    Gradients are the fullest rank's: equal ranks are played once. A pipeline's are not recorded.
    """
    path = folder / "training_records.json"
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    cases = read_cases(folder)
    for name, ranks in records.items():
        if cases[name]["engine"] not in ENGINES:
            continue
        outcome = play(cases[name], steps=3, memory=True)
        for line in outcome.timelines:
            held, real = line.program.step_held[-1], ranks[line.program.rank]["memory"]
            said = {key: (held.get(key, 0), real.get(key, 0)) for key in HELD}
            if outcome.plan.mesh.pp == 1:
                said["gradient"] = (
                    _gradient_bytes(line.program), max(r["memory"]["gradient"] for r in ranks)
                )  # fmt: skip
            for key, (ours, theirs) in said.items():
                if ours or theirs:
                    yield Point(
                        family="training/memory", role="validation", unit="bytes",
                        name=f"{name} rank {line.program.rank} {key}",
                        predicted=ours, measured=theirs,
                    )  # fmt: skip


def _gradient_bytes(program: Program) -> int:
    """Held when the last optimizer step begins."""
    last = range(program.backward_ends[-1], len(program.ops))
    begins = next(i for i in last if program.ops[i].category == "optimizer")
    return sum(
        event.delta_bytes for event, at in zip(program.memory, program.memory_at, strict=True)
        if at <= begins and event.category == "gradient"
    )  # fmt: skip
