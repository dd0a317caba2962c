"""``raysim calibrate``: constants of this machine from measured rows, into a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.errors import CalibrationError, ScenarioError

if TYPE_CHECKING:
    from raysim.calibrate.fit import Evaluate, Fit
    from raysim.calibrate.parameters import Parameter
    from raysim.calibrate.rows import Measured, Predict, RowKey
    from raysim.measure.workload import Workload
    from raysim.perf.profile import Constant, Profile
    from raysim.validate.replayed import Against

USUAL = ("core_speed", "grpc_bytes_per_s")
"""Of a machine: how fast its cores run Ray's code, and how fast they move bytes between nodes."""

OF_THREADS = (
    "submit_task_ns", "submit_actor_task_ns", "get_ns", "put_ns",
    "io_submit_ns", "io_lease_reply_ns", "io_reply_ns", "io_task_ns", "io_message_ns",
    "io_object_ns", "execute_ns", "execute_task_ns", "execute_async_ns", "stored_arg_ns",
    "stored_return_ns", "raylet_lease_ns", "pin_ns", "object_manager_message_ns",
    "plasma_request_ns", "grpc_work_ns", "grpc_same_host_ns", "cold_factor", "cold_ns",
)  # fmt: skip
"""Constants that are work of threads, which accounts say better than the time of a call; and a hop,
whose wait is what is left of that time."""
CARRIED = {"raylet_lease_ns": ("raylet_pop_worker_ns", "raylet_return_ns")}
"""Parts of one task's lease: each comes once, so that rows see their sum."""
CORE = "ray_core"
"""The family that says a machine's constants first; those of others are fitted beside them."""

WANTED = (
    "calibrate takes a folder of tables that `raysim measure` wrote on the machine, or "
    "`raysim validate --real`"
)
TRAINING = "training"
"""The family whose rows are steps of ``raysim measure step``, and not workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """As on the command line."""

    names: str | None = None
    family: str = "ray_core"
    workloads: Path | None = None
    hold: str | None = None
    """Words; calibration workloads whose name has one are predicted, and not fitted."""
    out: Path = Path("profile.yaml")
    processes: int = 1


def calibrate(folder: Path, options: CalibrateOptions) -> None:
    """Fit constants on a folder's calibration rows; print them and every row; write the profile.

    Raises
    ------
    ScenarioError, CalibrationError
        An option is wrong; rows, workloads or the description of the machine are missing; a fit
        was asked for on validation rows.
    """
    if not folder.is_dir():
        said = "is a file" if folder.exists() else "no such folder"
        raise ScenarioError(f"{folder}: {said}; {WANTED}")
    if options.family == TRAINING:
        _calibrate_training(folder, options)
        return
    from raysim.calibrate.direct import direct_constants
    from raysim.calibrate.fit import POLLED_STEP, STEP, fit
    from raysim.calibrate.outcome import compare, lines, profile_of_fit
    from raysim.calibrate.parameters import parameters
    from raysim.calibrate.rows import read_replays
    from raysim.validate.replayed import Against
    from raysim.validate.response import Emulator, survey

    rows = read_replays(folder, options.family)
    against = Against.at(folder)
    workloads = _workloads(rows, options)
    names = _split(options.names) or USUAL
    before_it = against.profile()
    core = options.family == CORE
    known = direct_constants(folder) if core else before_it.ray  # of the machine already
    direct = {n: c for n, c in known.items() if core or n not in names}
    wanted = parameters(names, "ray", direct)
    terminal.say(f"Predicting {len(workloads)} workloads with raysim's own constants")
    before, reasons = survey(workloads, against)
    for name, reason in reasons.items():
        terminal.say(f"  left out: {name}: {reason}")
    chosen = _chosen(rows, before, options)
    fitted = _of({row.key[0] for row in chosen}, workloads)
    values = {name: constant.value for name, constant in direct.items() if name not in names}
    accounts = _accounts(folder, against, values, names) if core else _Accounts()
    wanted += accounts.parameters
    terminal.say(
        f"Fitting {len(wanted)} constants on {len(chosen)} rows of {len(fitted)} workloads"
        + (f" and {len(accounts.rows)} accounts of threads" if accounts.rows else "")
    )
    emulator = Emulator(workloads=fitted, against=against, known=values)
    predict = partial(_both, emulator, accounts.predict)
    with _evaluating(options.processes) as evaluate:
        step = STEP if core else POLLED_STEP
        found = fit(
            wanted, predict, [*chosen, *accounts.rows], step=step, start=_values(before_it),
            evaluate=evaluate,
        )  # fmt: skip
    profile = profile_of_fit(
        found, name=options.out.stem, made=date.today().isoformat(),
        source=_source(against, found, f"replay_{options.family}_calibration.csv", "ray"),
        direct=direct | accounts.priors,
    )  # fmt: skip
    if not core:
        profile = _beside(profile, before_it, folder)
    predicted = _of({name for name, _ in before}, workloads)
    first = before | {row.key: found.before[row.key] for row in accounts.rows}
    after = Emulator(workloads=predicted, against=against)(_values(profile))
    after |= {row.key: found.after[row.key] for row in accounts.rows}
    compared, missing = compare([*rows, *accounts.rows], first, after)
    terminal.say("\n".join(["", *lines(found, compared, missing)]))
    _write(profile, options.out, folder)


def _beside(profile: Profile, known: Profile, folder: Path) -> Profile:
    """Constants of one family more, and what tables say of ranks without a GPU.

    How far predictions may be off stays as it was.
    """
    from raysim.calibrate.direct_cpu import cpu_constants

    return replace(
        profile, name=known.name, source=f"{known.source}; {profile.source}", spread=known.spread,
        training=cpu_constants(folder),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accounts:
    """Of threads' work: rows that say more of their constants than times of calls do."""

    parameters: list[Parameter] = field(default_factory=list)
    rows: list[Measured] = field(default_factory=list)
    predict: Predict | None = None

    @property
    def priors(self) -> dict[str, Constant]:
        """Of all, for a profile to hold where the rows said too little."""
        from raysim.perf.profile import Constant, unit_of

        source = "raysim's own, at the speed of these cores"
        each = {p.name: p.prior for p in self.parameters}
        for p in self.parameters:
            each |= p.carries
        return {n: Constant(value=v, unit=unit_of(n), source=source) for n, v in each.items()}


def _accounts(
    folder: Path, against: Against, known: Mapping[str, float], names: tuple[str, ...]
) -> _Accounts:
    """The folder's, if it has any; constants in ``names`` are fitted already."""
    import numpy as np

    from raysim.validate.work import ThreadWork, measured_work

    measured = measured_work(folder)
    if not measured:
        return _Accounts()
    predict = ThreadWork(against=against, known=known)
    there = predict({})
    rows = [row for row in measured if there.get(row.key, 0.0) > 0]
    speed = float(np.median([there[row.key] / row.value for row in rows]))
    each = [p for p in _at_speed(speed) if p.name not in names]
    return _Accounts(parameters=each, rows=rows, predict=predict)


def _both(
    one: Predict, other: Predict | None, values: Mapping[str, float]
) -> Mapping[RowKey, float]:
    return {**one(values), **({} if other is None else other(values))}


def _at_speed(core_speed: float) -> list[Parameter]:
    """Threads' constants, each with the prior that it has on cores of that speed."""
    from raysim.calibrate.parameters import parameters
    from raysim.perf.ray_core import RayCosts

    costs = RayCosts().at_speed(core_speed)
    return [
        replace(
            p, prior=float(getattr(costs, p.name)),
            carries={name: float(getattr(costs, name)) for name in CARRIED.get(p.name, ())},
        )
        for p in parameters(OF_THREADS, "ray")
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Measured training steps of a folder, what its tables say, and how steps are predicted."""

    rows: list[Measured]
    cases: Mapping[str, Mapping[str, Any]]
    """By name, those that raysim plays."""
    names: tuple[str, ...]
    """What is fitted."""
    direct: dict[str, Constant]
    predict: Callable[[Iterable[Mapping[str, Any]], Profile], dict[RowKey, float]]


def _calibrate_training(folder: Path, options: CalibrateOptions) -> None:
    """The same for training steps, of ranks on the CPU or of one GPU.

    Priors are what the folder's tables say.
    """
    from raysim.calibrate.fit import fit
    from raysim.calibrate.outcome import compare, lines, profile_of_fit
    from raysim.calibrate.parameters import parameters
    from raysim.measure.table import read_meta
    from raysim.perf.profile import OWN
    from raysim.validate.replayed import Against
    from raysim.validate.training_cases import profile_of

    against = Against.at(folder)
    of = _gpu_steps if read_meta(folder)["hardware"]["gpus"] else _cpu_steps
    steps = of(folder, _split(options.names))
    known = {n: c.value for n, c in steps.direct.items() if n not in steps.names}
    chosen = [row for row in steps.rows if row.role == "calibration"]
    fitted = [steps.cases[n] for n in dict.fromkeys(r.key[0] for r in chosen) if n in steps.cases]

    def predict(values: Mapping[str, float]) -> dict[RowKey, float]:
        return steps.predict(fitted, profile_of({**known, **values}))

    played = predict({})
    chosen = [row for row in chosen if row.key in played]  # a pipeline's phases are not
    wanted = parameters(steps.names, "training", steps.direct)
    terminal.say(f"Fitting {len(wanted)} constants on {len(chosen)} rows of {len(fitted)} steps")
    found = fit(wanted, predict, chosen)
    profile = profile_of_fit(
        found, name=options.out.stem, made=date.today().isoformat(), section="training",
        source=_source(against, found, "training_steps_calibration.csv", "torch"),
        direct=steps.direct,
    )  # fmt: skip
    before, after = (steps.predict(steps.cases.values(), p) for p in (OWN, profile))
    compared, missing = compare(steps.rows, before, after)
    terminal.say("\n".join(["", *lines(found, compared, missing)]))
    _write(profile, options.out, folder)


def _cpu_steps(folder: Path, asked: tuple[str, ...]) -> _Steps:
    from raysim.calibrate.direct_cpu import cpu_constants
    from raysim.calibrate.direct_host import host_speed
    from raysim.validate import training_cases as training

    training.calibration_rows(folder)
    cases = training.read_cases(folder)
    names, speed = asked or training.FITTED, host_speed(folder)
    direct = {n: c for n, c in cpu_constants(folder).items() if n in names}
    return _Steps(
        rows=training.read_steps(folder), names=names,
        cases={n: c for n, c in cases.items() if c["engine"] in training.ENGINES},
        direct=direct | ({} if speed is None else {"host_speed": speed}),
        predict=training.predict_steps,
    )  # fmt: skip


def _gpu_steps(folder: Path, asked: tuple[str, ...]) -> _Steps:
    """How fast the host's threads are in a step is fitted: loops over small layers are its best."""
    from raysim.calibrate.direct_gpu import gpu_constants
    from raysim.calibrate.direct_host import host_speed
    from raysim.calibrate.parameters import PRIOR_SIGMA
    from raysim.perf.profile import OWN
    from raysim.validate import gpu_steps
    from raysim.validate.training_cases import read_cases

    speed = host_speed(folder)
    if speed is None:
        raise CalibrationError(f"{folder}: no host_dispatch.csv; `raysim measure host` makes it")
    gpu = gpu_steps.machine(folder, OWN).groups[0].node.gpu
    assert gpu is not None
    direct = {
        **gpu_constants(folder, gpu, speed.value),
        "host_speed": replace(speed, error=PRIOR_SIGMA),
    }
    return _Steps(
        rows=gpu_steps.step_rows(folder), cases=read_cases(folder),
        names=asked or gpu_steps.FITTED, direct=direct,
        predict=partial(gpu_steps.predict_steps, folder),
    )  # fmt: skip


def _workloads(rows: list[Measured], options: CalibrateOptions) -> tuple[Workload, ...]:
    """The files that the measured rows are from, as many as are there."""
    from raysim.measure.workload import WORKLOADS, read_workload

    root = (options.workloads or WORKLOADS) / options.family
    names = dict.fromkeys(row.key[0] for row in rows)
    files = [root / f"{name}.py" for name in names if (root / f"{name}.py").is_file()]
    if not files:
        raise ScenarioError(f"{root}: holds none of the {len(names)} measured workloads")
    roles = {row.key[0]: row.role for row in rows}
    found = tuple(map(read_workload, files))
    wrong = [w for w in found if w.role != roles[w.name]]
    if wrong:
        raise CalibrationError(
            f"{wrong[0].path}: is a {wrong[0].role} workload, but its rows were measured as "
            f"{roles[wrong[0].name]}"
        )
    return found


def _of(names: set[str], workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return tuple(w for w in workloads if w.name in names)


def _chosen(
    rows: list[Measured], predicted: dict[RowKey, float], options: CalibrateOptions
) -> list[Measured]:
    """Calibration rows that are predicted and not held back."""
    hold = _split(options.hold)
    unknown = [word for word in hold if not any(word in row.key[0] for row in rows)]
    if unknown:
        raise ScenarioError(f"--hold {unknown[0]}: no measured workload of that name")
    return [
        row
        for row in rows
        if row.role == "calibration"
        and row.key in predicted
        and not any(word in row.key[0] for word in hold)
    ]


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _values(profile: Profile) -> dict[str, float]:
    return {name: constant.value for name, constant in profile.ray.items()}


def _source(against: Against, found: Fit, table: str, package: str) -> str:
    """What machine and versions, and what was fitted."""
    machine, versions = against.hardware, against.versions
    accounts = sum(row.model_error is not None for row in found.rows)
    also = f" and {accounts} accounts of threads" * bool(accounts)
    return (
        f"{len(found.rows) - accounts} rows of {table}{also} on {machine.get('cpu')}, "
        f"{machine.get('cores')} cores, {package} {versions.get(package)}; raysim calibrate"
    )


def _write(profile: Profile, out: Path, folder: Path) -> None:
    from raysim.results.result import yaml_text
    from raysim.scenario.profile import profile_data

    with terminal.writing(out):
        text = yaml_text(profile_data(profile), flowing_lists=True)
        out.write_text(text, encoding="utf-8")
    terminal.say(f"\n{out}: {len(profile.ray) + len(profile.training)} constants from {folder}")


@contextmanager
def _evaluating(processes: int) -> Iterator[Evaluate]:
    """How ``fit`` evaluates several sets of constants: one by one, or on so many processes."""
    if processes <= 1:
        yield map
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield pool.map
