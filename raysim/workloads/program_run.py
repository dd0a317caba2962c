"""Playing a Ray program: the cluster, what goes wrong meanwhile, and how the driver ends.

Real counterpart: ``ray job submit -- python script.py``, and whoever breaks the machines meanwhile.

Whatever way the driver ends (returns, raises, exits, waits for ever, is stopped), what the state
log has until then is kept. A program that waits when nothing is left to happen is found out after
an hour or two of virtual time in which nothing happened; one that looks again and again
for what never comes, at ``until_s`` or after a week (a library's job: a year).
"""

from __future__ import annotations

import csv
import logging
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TextIO

from raysim.errors import InvariantViolation, Location, Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.network import FlowNetwork
from raysim.hardware.port_history import PortHistory
from raysim.kernel.simulation import Simulation
from raysim.rayapi.compute import Compute
from raysim.rayapi.launch.running import run_launched
from raysim.rayapi.loader import run_program, run_script
from raysim.rayapi.serve import bound
from raysim.rayapi.session import LIMIT_S, DriverDied, ProgramHangs
from raysim.rayapi.task_errors import RayError
from raysim.rayapi.tracebacks import COLOR, INSTALLED, NOT_THEIRS, OURS, user_traceback
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.faults import Faults
from raysim.raycore.state_log import StateLog
from raysim.raylibs.report import LibraryReport
from raysim.units import to_ns
from raysim.workloads.moment import Pause, Running, act, back_later
from raysim.workloads.program import FaultEvent, ProgramJob
from raysim.workloads.spot import Spot
from raysim.workloads.submissions import JobRecord, Submitter, generate, without_supervisors

logger = logging.getLogger(__name__)
LIBRARY_LIMIT_S = 400 * 86_400.0
"""Of a library's job, which looks at nothing again and again: a training run takes months."""
Ending = Literal["ok", "exit", "exception", "killed", "hang", "until"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverExit:
    """How the driver ended."""

    how: Ending
    """``exit``: with a code other than 0; ``killed``: its process is gone; ``hang``: nothing was
    left to happen."""
    text: str = ""
    """Of an exception, its traceback; of a wait, where it waits."""
    message: str = ""
    """In one line."""
    enough: str = ""
    """Why it was stopped, if not by the clock: it had taken as many steps as it needs to."""
    code: int = 0
    """What the process would have returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """What is left when the driver has ended."""

    job: ProgramJob
    spec: ClusterSpec
    """As it started."""
    cluster: Cluster
    """As it stands at the end."""
    log: StateLog
    exit: DriverExit
    end_ns: int
    """When the driver ended; of a program that hangs, when the last thing happened."""
    compute: Compute
    output: str
    """What the driver and its workers printed."""
    reports: tuple[LibraryReport, ...] = ()
    """Of jobs of Ray's libraries that ended, in that order."""
    faults: tuple[FaultEvent, ...] = ()
    """Those of the job and of its branch, and spot nodes that were taken back."""
    jobs: tuple[JobRecord, ...] = ()
    """What became of each, if there were several."""

    def compute_rows(self) -> list[list[str]]:
        """What compute.csv holds; empty unless time was measured."""
        if self.job.compute != "measured":
            return []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "compute.csv"
            self.compute.write(path)
            with path.open(newline="", encoding="utf-8") as file:
                return list(csv.reader(file))


def play_program(
    job: ProgramJob,
    spec: ClusterSpec,
    simulation: Simulation,
    log: StateLog,
    ports: PortHistory | None = None,
    pauses: Sequence[Pause] = (),
) -> ProgramOutcome:
    """Run the script, or the workload, on the cluster.

    Parameters
    ----------
    job, spec
        What is run, and on what.
    simulation
        A fresh run: its clock is the program's.
    log
        Keeps what happens.
    ports
        Keeps what network ports carry.
    pauses
        When the run stands still, for somebody to look at it.

    Raises
    ------
    ScenarioError
        The program uses a part of Ray that is not emulated.
    """
    cluster = cluster_of(job, spec, simulation, log)
    cluster.env.files.extend(job.files)
    if isinstance(cluster.env.network, FlowNetwork):
        cluster.env.network.moved = ports
    faults = Faults(cluster)
    for event in job.faults:
        simulation.at(to_ns(event.at_s), act(event, faults))
        back_later(event, faults)
    running = Running(simulation=simulation, faults=faults)
    for pause in pauses:
        simulation.pause_at(pause.at_ns, partial(pause.then, running))
    spot = Spot(cluster, faults, job.spot, operator=job.kuberay and job.autoscaling is None)
    mode: Any = "declared" if job.compute == "drawn" else job.compute
    compute = Compute(mode, table=job.compute_table, slowdown=1 / job.node_speed)
    submitter = Submitter(job.submissions, cluster)
    with _listening() as heard:
        ended = _drive(job, cluster, compute, submitter)
    end_ns = simulation.now_ns
    logger.info("the driver ended at %d ns: %s %s", end_ns, ended.how, ended.message)
    log.rows[:] = without_supervisors(log.rows)
    if ended.how == "hang":
        end_ns = max((row.t_ns for row in log.rows if row.t_ns <= end_ns), default=end_ns)
    return ProgramOutcome(
        job=job, spec=spec, cluster=cluster, log=log, exit=ended, end_ns=end_ns, compute=compute,
        output="".join(heard), faults=(*job.faults, *running.happened, *spot.events),
        jobs=submitter.records(), reports=tuple(cluster.env.reports),
    )  # fmt: skip


def cluster_of(
    job: ProgramJob,
    spec: ClusterSpec,
    simulation: Simulation,
    log: StateLog,
    given: Mapping[int, NodeOptions] | None = None,
) -> Cluster:
    """The cluster of a job; ``given`` is what single nodes are started with."""
    usual = NodeOptions(object_store_bytes=job.object_store_bytes)
    return Cluster(
        simulation, spec, config=job.config, costs=job.costs, autoscaling=job.autoscaling, log=log,
        clouds=job.clouds,
        options={**dict.fromkeys(range(_nodes_at_most(spec)), usual), **(given or {})},
    )  # fmt: skip


def _nodes_at_most(spec: ClusterSpec) -> int:
    return sum(max(group.count, group.max_count or 0) for group in spec.groups)


def _drive(job: ProgramJob, cluster: Cluster, compute: Compute, submitter: Submitter) -> DriverExit:
    """Run the script, the workload, or all jobs; how it ended."""
    limit_s = LIMIT_S if job.library is None else LIBRARY_LIMIT_S
    limit_s = limit_s if job.until_s is None else job.until_s
    try:
        if job.submissions:
            run_program(submitter.main, cluster, compute=compute, limit_s=limit_s, last=True)
            return _of_all(submitter)
        if job.script is None:
            main = partial(generate, job.workload, job.library, cluster)
            return _of_workload(main, cluster, compute, limit_s)
        if job.launched is not None:
            run_launched(
                job.launched, file=job.script, cluster=cluster, limit_s=limit_s,
                training=job.training, last=True, steps=job.steps,
            )  # fmt: skip
            return DriverExit(how="ok")
        fails = job.faults or job.spot  # how it fares is its answer
        to_its_end = job.steps is None and (fails or not job.stops)
        run_script(
            job.script, job.args, cluster=cluster, compute=compute, limit_s=limit_s,
            training=job.training, last=True, steps=0 if to_its_end else job.steps,
        )  # fmt: skip
    except ProgramHangs as wait:
        if wait.enough:
            return DriverExit(how="until", enough=wait.enough)
        where = str(wait).partition("it waits here:\n")[2].rstrip() if job.script else ""
        line = where.strip().splitlines()[-1].strip() if where else f"the driver of {job.title}"
        how: Ending = "hang" if wait.certain or job.until_s is None else "until"
        return DriverExit(how=how, text=where, message=line, code=how == "hang")
    except DriverDied as died:
        return DriverExit(how="killed", message=str(died), code=137)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        said = "" if isinstance(stop.code, int) else f": {stop.code}"
        return DriverExit(how="exit", message=f"exit code {code}{said}", code=code)
    except NotEmulatedError as error:
        place = _last_place(error, job.script)
        raise ScenarioError(Problem(message=_in_a_line(error), where=place)) from None
    except Exception as error:
        if _is_ours(error, job.script):
            raise
        said, line = user_traceback(error), _in_a_line(error) + _way_out(error, job.script)
        return DriverExit(how="exception", text=said, message=line, code=1)
    return DriverExit(how="ok")


def _of_workload(
    main: Callable[[], None], cluster: Cluster, compute: Compute, limit_s: float
) -> DriverExit:
    try:
        run_program(main, cluster, compute=compute, limit_s=limit_s, last=True)
    except RayError as error:
        return DriverExit(how="exception", text=str(error), message=_in_a_line(error), code=1)
    return DriverExit(how="ok")


def _of_all(submitter: Submitter) -> DriverExit:
    """How several jobs ended; what one uses that is not emulated is raised."""
    for error in submitter.errors():
        if isinstance(error, NotEmulatedError) or _broke(error):
            raise error
    records = submitter.records()
    bad = [record for record in records if record.status != "SUCCEEDED"]
    if not bad:
        return DriverExit(how="ok")
    said = ", ".join(f"{record.name} {record.status}" for record in bad[:3])
    message = f"{len(bad)} of {len(records)} jobs not succeeded ({said})"
    return DriverExit(how="exit", message=message, text=bad[0].message, code=1)


# ---- whose error it is ---------------------------------------------------------------------------

_TITLE = re.compile(r"ray::([^()]*)\(\)")
_AGAIN = " is not emulated by raysim."


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _is_ours(error: Exception, script: Path | None) -> bool:
    """Not raised by the program: by no frame of it, or by an assertion of a room."""
    if isinstance(error, SyntaxError) and error.filename == str(script):
        return False
    if _broke(error):
        return True
    theirs = {str(script), bound.__file__}  # or by what is left to Ray's command line
    return not any(frame.filename in theirs for frame in _frames(error))


def _broke(error: BaseException) -> bool:
    """An assertion of a room; those of tasks come as errors of Ray's that are assertions too."""
    frames = _frames(error)
    outside = isinstance(error, AssertionError | InvariantViolation)
    outside = outside and not isinstance(error, RayError)
    return outside and bool(frames) and frames[-1].filename.startswith(OURS)


def _last_place(error: BaseException, script: Path | None) -> Location:
    """Where in the user's own code it was raised."""
    theirs = [f for f in _frames(error) if not f.filename.startswith(NOT_THEIRS + INSTALLED)]
    if not theirs:
        return Location(file=str(script))
    return Location(file=theirs[-1].filename, line=theirs[-1].lineno)


def _in_a_line(error: BaseException) -> str:
    """Class and message; of a task's error, those of what the task raised, and which task."""
    cause = getattr(error, "cause", None)
    where = ""
    if isinstance(cause, BaseException):
        title = _TITLE.search(str(error))
        where = f" (in {title[1]})" if title else " (in a task)"
        error = cause
    if isinstance(error, NotEmulatedError):
        said = str(error)
        while said.endswith(_AGAIN) and said.count(_AGAIN) > 1:  # once more per pickling
            said = said.removesuffix(_AGAIN)
        return f"{said}{where}"
    last = traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
    return f"{COLOR.sub('', last)}{where}"


def _what_is_installed(name: str) -> str:
    """Beside an import that fails in a package which is there."""
    try:
        there = f"{name} {version(name)} is what is" if name and name != "ray" else "see what is"
    except PackageNotFoundError:
        there = "see what is"
    return f" (the program's own code really runs, with the packages beside raysim: {there} there)"


_NO_GPU = re.compile(
    "Torch not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver|"
    "no CUDA-capable device"
)


def _way_out(error: BaseException, script: Path | None) -> str:
    """Of a module or a GPU that is not here: a program's own code really runs."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    if _NO_GPU.search(str(error)):
        return (
            " (the program's own code really runs, and this machine has no GPU: tensors on GPUs "
            "are emulated in training workers only. Let it take the CPU where "
            "torch.cuda.is_available() is False, and say with raysim.cost(seconds=...) or "
            "raysim.charge(seconds=...) what the GPU would take)"
        )
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
        return _what_is_installed(name)
    if not isinstance(error, ModuleNotFoundError) or not name or name == "ray":
        return ""
    for folder in script.resolve().parents if script is not None else ():
        if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
            return f" (it is in {folder}: set PYTHONPATH={folder})"
    return " (the program's own code really runs: install it beside raysim)"


# ---- what it prints ------------------------------------------------------------------------------


class _Heard:
    """Standard output that is also kept."""

    def __init__(self, real: TextIO, kept: list[str]) -> None:
        self._real = real
        self._kept = kept

    def write(self, text: str) -> int:
        """To both."""
        self._kept.append(text)
        return self._real.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What is written to standard output and standard error meanwhile."""
    heard: list[str] = []
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Heard(out, heard), _Heard(err, heard)
    try:
        yield heard
    finally:
        sys.stdout, sys.stderr = out, err
