"""The ``jobs`` section of a scenario of Ray programs: one driver, or several jobs submitted.

Real counterpart: ``ray job submit``, and the spec of KubeRay's RayJob.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.rayapi.launch.commands import Command
from raysim.scenario.documents import Document, KeyPath, printable
from raysim.scenario.launchers import command_of
from raysim.scenario.library import library_of
from raysim.scenario.rayjob import RayJobRequest, read_rayjob
from raysim.scenario.schema_program import ProgramJobSection, RayJobSection, ScriptSection
from raysim.scenario.workload import files_of, workload_of
from raysim.scenario.yaml_text import read_yaml_all
from raysim.workloads.program import Submission


class Jobs:
    """Reads them; what they name is looked for.

    Parameters
    ----------
    folder, document
        Where paths lead from, and where keys stand.
    inputs
        Files found, by the key that names them; added to.
    problems
        What is wrong; added to.
    """

    def __init__(
        self,
        folder: Path,
        document: Document,
        inputs: dict[KeyPath, Path],
        problems: list[Problem],
    ) -> None:
        self._folder, self._document = folder, document
        self._inputs, self._problems = inputs, problems

    def read(self, said: list[ProgramJobSection]) -> dict[str, Any]:
        """What a ``ProgramJob`` runs."""
        jobs = [self._what(job, i) for i, job in enumerate(said)]
        submitted = len(said) > 1 or any(_is_submitted(job) for job in said)
        if not submitted or self._problems:
            return jobs[0]
        if any(what.get("launched") for what in jobs):
            message = "a launcher's script is the scenario's only job, and starts at once"
            self._problems.append(self._document.problem(("jobs",), message, key=True))
        names = Counter(name for job, what in zip(said, jobs, strict=True) for name in
                        _names(job, what["name"]))  # fmt: skip
        for name, n in names.items():
            if n > 1:
                message = f"{n} jobs are called {name!r}; give them a `name`"
                self._problems.append(self._document.problem(("jobs",), message, key=True))
        modes = {what["compute"]: None for what in jobs if "script" in what}
        tables = {what["compute_table"]: None for what in jobs if "script" in what}
        if len(modes) > 1 or len(tables) > 1:
            message = "all scripts need the same `compute`: they share one clock"
            self._problems.append(self._document.problem(("jobs",), message, key=True))
        submissions = tuple(
            submission
            for job, what in zip(said, jobs, strict=True)
            for submission in _submissions(job, what)
        )
        return {
            "name": "jobs", "submissions": submissions,
            "compute": next(iter(modes), "drawn"), "compute_table": next(iter(tables), None),
        }  # fmt: skip

    def _what(self, said: ProgramJobSection, index: int) -> dict[str, Any]:
        """One job, and the files it takes."""
        at: KeyPath = ("jobs", index)
        if said.library is not None:
            try:
                library = library_of(said, at, self._folder, self._document, self._inputs)
            except ScenarioError as error:
                self._problems += error.problems
                return {"name": ""}
            return {"name": said.name or library.kind, "library": library, "compute": "drawn"}
        if said.workload is not None:
            found = files_of(said.workload, self._folder)
            self._inputs.update({(*at, *path[2:]): file for path, file in found.items()})
            name = said.name or said.workload.kind
            try:
                workload = workload_of(said.workload, found, self._document)
            except ScenarioError as error:
                self._problems += error.problems
                return {"name": name}
            return {"name": name, "workload": workload, "compute": "drawn"}
        if said.rayjob is not None:
            return self._rayjob(said.rayjob, said.name, at)
        script = said.script
        assert script is not None, "the schema lets one of the two through"
        path = self._inputs[*at, "script", "path"] = self._folder / script.path
        if not path.is_file():
            where: KeyPath = (*at, "script", "path")
            self._problems.append(self._document.problem(where, f"{path}: no such file"))
        table = self._table(script.compute, (*at, "script", "compute"))
        if table is not None:
            self._inputs[*at, "script", "compute"] = table
        launched = self._launched(said, script, path, at)
        compute = script.compute if launched is None else "declared"
        return {
            "name": said.name or path.stem[:100], "script": path, "args": tuple(script.args),
            "compute": compute if table is None else "table", "compute_table": table,
            "launched": launched,
        }  # fmt: skip

    def _launched(
        self, job: ProgramJobSection, script: ScriptSection, path: Path, at: KeyPath
    ) -> Command | None:
        """What its launcher is asked for; the cluster is the launcher's alone."""
        if script.launcher is None:
            return None
        where: KeyPath = (*at, "script", "launcher")
        if _is_submitted(job):
            message = "a launcher's script is the scenario's only job, and starts at once"
            self._problems.append(self._document.problem(where, message))
            return None
        try:
            return command_of(script.launcher, str(path), script.args)
        except ScenarioError as error:
            self._problems += [
                self._document.problem(where, problem.message) for problem in error.problems
            ]
            return None

    def _rayjob(self, said: RayJobSection, name: str | None, at: KeyPath) -> dict[str, Any]:
        """What a manifest says; the file itself is an input."""
        path = self._inputs[*at, "rayjob", "path"] = self._folder / said.path
        table = self._table(said.compute, (*at, "rayjob", "compute"))
        try:
            its = read_rayjob(read_yaml_all(path, str(path)), path.parent)
        except ScenarioError as error:
            self._problems += error.problems
            return {"name": ""}
        return {
            "name": name or its.name, "compute_table": table,
            "compute": said.compute if table is None else "table",
            "script": its.script, "rayjob": its,
        }  # fmt: skip

    def _table(self, said: str, where: KeyPath) -> Path | None:
        """The compute.csv that a job's ``compute`` names; None for a mode."""
        if said in ("measured", "declared"):
            return None
        path = self._folder / said
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    _ = row["function"], int(row["slice"]), float(row["mean_core_s"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            reason = f"no column {reason}" if isinstance(error, KeyError) else reason
            message = (
                f"{path}: {reason}; expected measured, declared, or the compute.csv of an "
                "earlier run"
            )
            self._problems.append(self._document.problem(where, printable(message)))
            return None
        return path


def _is_submitted(job: ProgramJobSection) -> bool:
    """Whether it says what only a submitted job has."""
    return bool(
        job.rayjob or job.at or job.copies > 1 or job.entrypoint_num_cpus or job.entrypoint_num_gpus
        or job.env_vars or job.backoff_limit or job.active_deadline is not None
    )  # fmt: skip


def _names(job: ProgramJobSection, name: str) -> list[str]:
    return [name] if job.copies == 1 else [f"{name}-{i}" for i in range(job.copies)]


def _submissions(job: ProgramJobSection, what: dict[str, Any]) -> list[Submission]:
    if "rayjob" in what:
        its: RayJobRequest = what["rayjob"]
        return [
            Submission(
                name=name, at_s=job.at + i * job.every, script=its.script, source=its.source,
                args=its.args, mode=its.submission_mode, own_cluster=its.own_cluster,
                paid_after_s=its.ttl_seconds_after_finished
                if its.shutdown_after_job_finishes
                else None,
                resources=its.resources, runtime_env=its.runtime_env,
                backoff_limit=its.backoff_limit, active_deadline_s=its.active_deadline_seconds,
            )
            for i, name in enumerate(_names(job, what["name"]))
        ]  # fmt: skip
    cpus, gpus = job.entrypoint_num_cpus, job.entrypoint_num_gpus
    asked = {"num_cpus": cpus, "num_gpus": gpus}
    return [
        Submission(
            name=name,
            at_s=job.at + i * job.every,
            script=what.get("script"),
            workload=what.get("workload"),
            library=what.get("library"),
            args=what.get("args", ()),
            resources={key: value for key, value in asked.items() if value},
            runtime_env={"env_vars": dict(job.env_vars)} if job.env_vars else {},
            backoff_limit=job.backoff_limit,
            active_deadline_s=job.active_deadline,
        )
        for i, name in enumerate(_names(job, what["name"]))
    ]
