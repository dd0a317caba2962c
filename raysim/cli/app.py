"""Every verb and every option, in one place; the set is frozen by ``tests/test_public.py``.

Verbs import what they need when they are called, so that ``raysim --help`` is quick.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raysim import __version__
from raysim.cli import complete, harness, what_if
from raysim.cli.command import Verb, Verbs, logging_verb
from raysim.cli.harness import DONE, MISSED
from raysim.errors import CalibrationError, ScenarioError

USER_ERROR, OUR_BUG, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="raysim",
    cls=Verbs,
    help="Time, throughput and memory of Ray and DeepSpeed jobs, before renting a machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class TraceFormat(StrEnum):
    """Trace files ``run`` can write."""

    PERFETTO = "perfetto"
    CHROME = "chrome"


Runnable = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO", autocompletion=complete.scenarios,
        help="A scenario folder, its YAML file, a Ray program (.py), or a launcher's command line.",
    ),
]  # fmt: skip
ScenarioPath = typer.Argument(
    metavar="SCENARIO", autocompletion=complete.scenarios,
    help="A scenario folder or YAML file.",
)  # fmt: skip
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="The program's own arguments, after --."),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Of a program: `ray up` YAML, KubeRay YAML, Anyscale's or a cluster section; by "
        "default one plain node, of a launcher's script hgx-h100-8.",
    ),
]
ComputeMode = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Of a program: measured, declared, or the compute.csv of an earlier run.",
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Constants measured on the machines: calibrate's file."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        autocompletion=complete.assignments,
        help="Change one key of the scenario; may be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the verdict.")]
RunPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN", autocompletion=complete.runs, help="A run's folder; by default the last run."
    ),
]


def verb(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a verb of the command."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=Verb)(logging_verb(function))
        return function

    return add


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raysim {__version__}")
        raise typer.Exit


@app.callback()
def raysim(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Time, throughput and memory of Ray and DeepSpeed jobs, before renting a machine."""


@verb()
def run(
    scenario: Runnable,
    args: Arguments = None,
    *,
    changes: Changes = None,
    cluster: ClusterFile = None,
    compute: ComputeMode = None,
    profile: ProfileFile = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed; by default the scenario's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder to write; by default runs/NAME-ID."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Predict only so much: 3h, a script's 200steps, or end."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check invariants after every event; slower.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead.")] = False,
    quiet: Quiet = False,
    no_trace: Annotated[
        bool, typer.Option("--no-trace", help="Record nothing: no trace, no frames.")
    ] = False,
    trace_format: Annotated[
        TraceFormat, typer.Option("--trace-format", help="Kind of trace file.")
    ] = TraceFormat.PERFETTO,
    memory_snapshot: Annotated[
        bool,
        typer.Option(
            "--memory-snapshot",
            help="Of a training job: also write the fullest GPU's memory for PyTorch's memory_viz.",
        ),
    ] = False,
) -> None:
    """Predict a job: print the report, write its folder."""
    from raysim.cli import run as work

    options = work.RunOptions(
        changes=tuple(changes or ()), args=tuple(args or ()), cluster=cluster, compute=compute,
        profile=profile, seed=seed, out=out, until=until, check=check, as_json=as_json,
        quiet=quiet, trace="none" if no_trace else trace_format.value,
        memory_snapshot=memory_snapshot,
    )  # fmt: skip
    raise typer.Exit(MISSED if work.run(scenario, options) else DONE)


Likely = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Least probability that it fits and meets the targets, as 0.9. By "
        "default those of 0.8 come first; 0: as predicted.",
    ),
]  # fmt: skip
Quantile = Annotated[
    float | None,
    typer.Option(
        min=0.5,
        max=0.99,
        help="Rank by the metric at this quantile of its interval, towards the worse.",
    ),
]


Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Processes; by default as many as save time."),
]


class RunOn(StrEnum):
    """Where ``plan`` tries its points."""

    PROCESSES = "processes"
    RAY = "ray"


@verb()
def plan(
    scenario: Annotated[Path, ScenarioPath],
    *,
    changes: Changes = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            autocompletion=complete.assignments,
            help="Values to try of one key, of a node also `any`; may be repeated. By default the "
            "scenario's `vary`, or sizes, layouts, bounds and intervals that suit the job.",
        ),
    ] = None,
    minimize: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            autocompletion=complete.metrics,
            help="By default the cost the job has.",
        ),
    ] = None,
    maximize: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", autocompletion=complete.metrics, help="Such as tokens_per_s."
        ),
    ] = None,
    subject_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'METRIC <= X'",
            autocompletion=complete.metrics,
            help="Beside the scenario's targets; may be repeated.",
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(min=0, help="days <= N.")] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="usd <= N.")] = None,
    max_gpus: Annotated[int | None, typer.Option(min=1, help="Rent no more.")] = None,
    likely: Likely = None,
    quantile: Quantile = None,
    processes: Jobs = None,
    on: Annotated[
        RunOn, typer.Option(help="processes of this machine, or tasks of a Ray cluster.")
    ] = RunOn.PROCESSES,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the Ray cluster; auto finds it.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 5,
    quiet: Quiet = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where its folder goes; by default runs."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead.")] = False,
) -> None:
    """Search for the best way to run a job; write files that deploy it."""
    from raysim.cli import plan as work

    options = work.PlanOptions(
        changes=tuple(changes or ()), vary=tuple(vary or ()), minimize=minimize,
        maximize=maximize, subject_to=tuple(subject_to or ()), days=days, budget=budget,
        max_gpus=max_gpus, likely=likely, quantile=quantile, processes=processes, on=on.value,
        address=address, top=top, out=out, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    raise typer.Exit(MISSED if work.plan(scenario, options) else DONE)


@verb()
def memory(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", autocompletion=complete.configs, help="A Hugging Face config.json."
        ),
    ],
    *,
    node: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=complete.nodes, help="Or a YAML file.")
    ] = "hgx-h100-8",
    nodes: Annotated[int | None, typer.Option(min=1, help="How many; by default one.")] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a sample; numbers of a sound."),
    ] = None,
    zero_stage: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, max=3, help="May be repeated.")
    ] = None,
    offload: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="none, optimizer or all; may be repeated."),
    ] = None,
    checkpointing: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="none, selective or full; may be repeated."),
    ] = None,
    micro_batch: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="By default 1 and 4.")
    ] = None,
    peft: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PEFT's adapter_config.json: only LoRA is trained."),
    ] = None,
    fail_over: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Exit with 1 if nothing is within it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain data instead.")] = False,
    quiet: Quiet = False,
) -> None:
    """Will it fit? Memory per GPU by ZeRO stage, offload, recomputation and micro-batch."""
    from raysim.cli import memory as work

    options = work.MemoryOptions(
        node=node, nodes=nodes, seq_len=seq_len, zero_stage=tuple(zero_stage or ()),
        offload=tuple(offload or ()), checkpointing=tuple(checkpointing or ()),
        micro_batch=tuple(micro_batch or ()), peft=peft, fail_over=fail_over,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip
    raise typer.Exit(MISSED if work.memory(config, options) else DONE)


@verb()
def check(
    scenario: Annotated[Path | None, ScenarioPath] = None,
    changes: Changes = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of scenario files, for editors.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            autocompletion=complete.keys,
            help="Explain one key, such as train.micro_batch.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what it is, in a line, and warnings.")
    ] = False,
) -> None:
    """Print a scenario resolved, with every default taken."""
    from raysim.cli import check as work

    if schema:
        work.print_schema()
    elif explain is not None:
        work.print_explanation(explain, scenario, tuple(changes or ()))
    elif scenario is None:
        raise typer.BadParameter(
            "needs a scenario, --schema or --explain KEY", param_hint="SCENARIO"
        )
    else:
        work.print_resolved(scenario, tuple(changes or ()), quiet=quiet)


@verb()
def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to make.")],
    config: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A Hugging Face config.json.")
    ] = None,
    deepspeed: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A DeepSpeed JSON, or Accelerate's config.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A `ray up`, KubeRay or Anyscale file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems.")] = False,
) -> None:
    """Write a starter scenario folder around your own files."""
    from raysim.cli import init as work

    work.init(name, config=config, deepspeed=deepspeed, cluster=cluster, quiet=quiet)


@verb()
def show(
    run: RunPath = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.tables,
            help="One table: collectives, memory, inputs, tasks, actors, ...",
        ),
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="The model's modules with their GPU time in one step.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Of a program: `ray status` (or --table) at a virtual time."
        ),
    ] = None,
    why: Annotated[
        str | None, typer.Option(metavar="TASK", help="Of a program: what a task waits for.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Print any part of a run again."""
    from raysim.cli import show as work

    work.show(run, table=table, tree=tree, at=at, why=why, quiet=quiet)


@verb()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", autocompletion=complete.runs, help="Folders of runs, or ids."
        ),
    ],
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only rows with this in their name.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page: one step of each, stream by stream."),
    ] = None,
) -> None:
    """Print what differs between runs, most first."""
    from raysim.cli import compare as work

    work.compare(tuple(runs), by=by, html=html)


@verb("open")
def open_(run: RunPath = None) -> None:
    """Open a run's report in the browser; print its path."""
    from raysim.cli import show as work

    work.open_report(run)


@verb()
def catalog(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            autocompletion=complete.kinds,
            help="gpus, nics, disks, nodes or models.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete.entries,
            help="One entry, with the basis of each number.",
        ),
    ] = None,
) -> None:
    """List known hardware and models, with sources."""
    from raysim.cli import catalog as work

    work.catalog(kind, name)


for elsewhere in (
    what_if.what_if,
    harness.measure,
    harness.validate,
    harness.calibrate,
    complete.completion,
):
    verb()(elsewhere)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code, see the package's docstring."""
    from raysim.cli import terminal
    from raysim.cli.watch import InterruptedRun

    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    complete.begin()
    try:
        app(given, prog_name="raysim")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except InterruptedRun as stop:
        terminal.complain([str(stop)])
        return INTERRUPTED
    except ScenarioError as error:
        terminal.complain(str(problem) for problem in error.problems)
        return USER_ERROR
    except CalibrationError as error:
        terminal.complain([str(error)])
        return USER_ERROR
    except Exception:  # noqa: BLE001  (the last resort: say that it is our fault, and how to see it again)
        terminal.confess(shlex.join(["raysim", *given]))
        return OUR_BUG
    return DONE
