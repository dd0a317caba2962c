"""``raysim what-if``: a program's run split at a moment, a column for each thing that happens."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.cli import complete, terminal
from raysim.cli import run as running
from raysim.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.what_if import WhatIf

DONE, MISSED = 0, 1


Splittable = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO", autocompletion=complete.scenarios,
        help="A Ray program's scenario, a script (.py), or a saved run.",
    ),
]  # fmt: skip
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="The program's own arguments, after --.")
]
When = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The moment, such as 3h; of a saved run its own."),
]
Happens = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT", autocompletion=complete.changes,
        help="What happens then: fail_node=2, preempt=3,notice=30s, or a bound such as "
        "cluster.GROUP.max_replicas=4; each in a branch of its own. May be repeated.",
    ),
]  # fmt: skip
SavedTo = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save the run as it stands at the moment.")
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", autocompletion=complete.assignments,
        help="Change one key from the beginning; may be repeated.",
    ),
]  # fmt: skip
ClusterFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Of a script: as of `raysim run`.")
]
ComputeMode = Annotated[
    str | None, typer.Option(metavar="HOW", help="Of a script: as of `raysim run`.")
]
Processes = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Branches at one time; by default one per core."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only a verdict for each branch.")]


def what_if(
    scenario: Splittable,
    args: Arguments = None,
    *,
    at: When = None,
    change: Happens = None,
    save: SavedTo = None,
    changes: Keys = None,
    cluster: ClusterFile = None,
    compute: ComputeMode = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed; by default the scenario's.")
    ] = None,
    processes: Processes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries instead.")] = False,
    quiet: Quiet = False,
) -> None:
    """Split a Ray program's run at a moment, and see what changes would make of it."""
    options = running.RunOptions(
        changes=tuple(changes or ()), args=tuple(args or ()), cluster=cluster, compute=compute,
        seed=seed, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    failed = _split(scenario, options, tuple(change or ()), at, save, processes)
    raise typer.Exit(MISSED if failed else DONE)


def _split(
    path: Path,
    options: running.RunOptions,
    changes: tuple[str, ...],
    at: str | None,
    save: Path | None,
    processes: int | None,
) -> bool:
    """Do it and print it; whether a branch has no result."""
    from raysim.what_if import save as save_run
    from raysim.what_if import what_if as split

    if not changes and save is None:
        raise ScenarioError("say what happens, as --change fail_node=2, or where to --save the run")
    scenario = running.scenario_of(path, options)
    if options.seed is not None:
        scenario = scenario.with_({"seed": options.seed})
    started_s, answer = terminal.wall_s(), None
    aside = contextlib.redirect_stdout(sys.stderr) if options.alone else contextlib.nullcontext()
    with aside:
        if changes:
            answer = split(scenario, changes, at=at, processes=processes, save=save)
        elif save is not None:
            save_run(scenario, save, at=at)
    if answer is not None:
        _print(answer, terminal.wall_s() - started_s, options)
    if save is not None and not options.alone:
        terminal.say(f"Wrote {save}")
    return answer is not None and bool(answer.failed)


def _print(answer: WhatIf, wall_s: float, options: running.RunOptions) -> None:
    from raysim.branching import BASELINE
    from raysim.results.result import summary_json
    from raysim.units import format_seconds

    summaries = {name: result.summary for name, result in answer.branches.items()}
    if options.as_json:
        found = {
            "at_seconds": answer.at_s, "baseline": answer.baseline.summary, "branches": summaries,
            "failed": {name: end.failure for name, end in answer.failed.items()},
        }  # fmt: skip
        terminal.say(summary_json(found))
        return
    for end in answer.failed.values():
        terminal.complain([end.detail] if end.detail else [])
    told = {BASELINE: answer.baseline.summary} | summaries
    if options.quiet:
        for name, summary in told.items():
            terminal.say(f"{name}: {summary['verdict']['text']}")
    else:
        whole = format_seconds(answer.baseline.summary["run"]["virtual_seconds"])
        at, branches = format_seconds(answer.at_s), len(answer.branches) + len(answer.failed)
        terminal.say(
            f"{answer.baseline.summary['scenario']}: {whole}, split at {at}; "
            f"{branches} what-if{'s' * (branches != 1)} in {wall_s:.1f} s"
        )
        heads, rows = answer.table()
        if rows:
            terminal.table(heads, rows, right=heads[1:])
        elif summaries:
            terminal.say("Nothing differs.")
        if answer.is_measured:
            terminal.say(
                "The script's own code is timed in each branch anew: small differences are its "
                "noise. Without: --compute declared, or the compute.csv of an earlier run."
            )
    for name, end in answer.failed.items():
        terminal.say(f"{name}: no result: {end.failure}")
