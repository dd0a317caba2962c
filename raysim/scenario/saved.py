"""A run saved at a moment: a resolved scenario that says where the run stood, and what it was.

Nothing can pickle a running simulation, so what is saved is how to come there again: scenario,
seed, version, the moment, and the digest of everything up to it. Whoever plays the file finds out
at the moment whether it is the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.scenario.program import ProgramScenario
from raysim.units import format_seconds
from raysim.workloads.moment import Mark, Pause, Running

MEASURED = "measured"
AGAIN = "save it again, with raysim what-if --save"


def may_be_saved(scenario: ProgramScenario) -> None:
    """Played again, it would be the same.

    Raises
    ------
    ScenarioError
        Its times are measured anew in every run.
    """
    if scenario.job.compute == MEASURED:
        raise ScenarioError(
            f"{scenario.name}: the script's own code is timed anew in every run, so none can be "
            "saved; say script.compute: declared, or the compute.csv of an earlier run"
        )


def saved(scenario: ProgramScenario, mark: Mark, folder: Path) -> dict[str, Any]:
    """What is written, for a file in ``folder``."""
    data = scenario.resolved_in(folder)
    moment = {"at_ns": mark.at_ns, "events": mark.events, "digest": mark.digest}
    return {**data, "resolved": {**data["resolved"], "moment": moment}}


def verifying(scenario: ProgramScenario) -> list[Pause]:
    """Of a saved run: where to look whether this one is the same; else nowhere."""
    moment = scenario.saved_at
    if moment is None:
        return []
    expected = Mark(at_ns=moment.at_ns, events=moment.events, digest=moment.digest)
    _must_have_its_files(scenario)

    def verify(running: Running) -> None:
        if running.mark != expected:
            raise ScenarioError(_differs(scenario, expected, running.mark))

    return [Pause(at_ns=moment.at_ns, then=verify)]


def _must_have_its_files(scenario: ProgramScenario) -> None:
    """What is read after the moment counts as well."""
    said, now = scenario.spec.resolved, scenario.files
    assert said is not None, "a saved run is a resolved scenario"
    changed = [name for name, digest in said.files.items() if now.get(name, digest) != digest]
    if changed:
        raise ScenarioError(
            f"{scenario.file}   {', '.join(changed)} changed since the run was saved; {AGAIN}"
        )


def _differs(scenario: ProgramScenario, expected: Mark, found: Mark) -> str:
    import raysim

    at = format_seconds(expected.at_ns / 1e9)
    said = scenario.spec.resolved
    assert said is not None, "a saved run is a resolved scenario"
    why = "its keys were changed since, or raysim was"
    if said.raysim != raysim.__version__:
        why = f"it was made by raysim {said.raysim}, this is {raysim.__version__}"
    return (
        f"{scenario.file}   not the run that was saved: {expected.events:,} events up to {at} "
        f"then, {found.events:,} now (digests {expected.digest[:8]} and {found.digest[:8]}); "
        f"{why}; {AGAIN}"
    )
