"""``report.html`` of a plan: the plan's own data, and one more run of the choice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.cli.plan import PlanOptions
    from raysim.planner.plan import Answer

NAME = "report.html"


def write(answer: Answer, summary: Mapping[str, Any], path: Path, options: PlanOptions) -> str:
    """Write the page into the plan's folder; its name."""
    import raysim
    from raysim.planner.files import deploy_files
    from raysim.planner.space import following
    from raysim.planner.trials import Trial
    from raysim.report.plan_html import PlanPage, render
    from raysim.results.result import yaml_text

    assert answer.folder is not None, "a plan that is kept"
    chosen = answer.chosen()
    fields = tuple(Trial.__dataclass_fields__)
    page = PlanPage(
        summary=summary,
        trials=[{name: getattr(t, name) for name in fields} for t in answer.sweep.trials],
        files={} if chosen is None else deploy_files(chosen),
        command=command(path, options), scenario=str(path), folder=answer.folder.name,
        scenario_yaml=yaml_text(answer.scenario.resolved()), version=raysim.__version__,
        chosen=_played(answer),
        goes_with=tuple(f"{key}=null" for key in following(answer.scenario, answer.space.values)),
    )  # fmt: skip
    (answer.folder / NAME).write_text(render(page), encoding="utf-8")
    return NAME


def _played(answer: Answer) -> Mapping[str, Any] | None:
    """The summary of the choice, for the interval of its prediction; training jobs have one."""
    from raysim.run import run
    from raysim.scenario.load import Scenario

    chosen = answer.chosen()
    if not isinstance(chosen, Scenario) or not answer.sweep.complete:
        return None
    return run(chosen, record=False, what_if=False).summary


def command(path: Path, options: PlanOptions) -> str:
    """That makes the same plan; how many processes did is not part of it."""
    words = ["raysim", "plan", str(path)]
    for flag, values in (
        ("--set", options.changes), ("--vary", options.vary), ("--subject-to", options.subject_to)
    ):  # fmt: skip
        words += [word for value in values for word in (flag, value)]
    for flag, value in (
        ("--minimize", options.minimize), ("--maximize", options.maximize),
        ("--days", options.days), ("--budget", options.budget), ("--max-gpus", options.max_gpus),
        ("--likely", options.likely), ("-o", options.out),
    ):  # fmt: skip
        if value is not None:
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
