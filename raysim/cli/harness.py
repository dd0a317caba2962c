"""Verbs of the validation harness: measure, validate, calibrate. ``app`` gives them to the command.

They stand apart from those that predict: they look at real machines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.cli import complete

DONE, MISSED = 0, 1


def measure(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            autocompletion=complete.measurable,
            help="gpu, host, collectives, ray, disk, step, scripts or memory.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder of the tables; by default validation/data/HARDWARE/DATE. Rows that are "
            "there are not measured again.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Stop after about so long, such as 10min.")
    ] = "2min",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few small points, to see that measuring works.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cuda or cpu; by default the GPU where there is one."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of collectives: nccl or gloo; by default NCCL where GPUs are."
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Of collectives: world sizes, as 2,4; by default the machine's. Under torchrun "
            "its world is taken.",
        ),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of step: training cases (JSON); see measure/README."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the folder of the tables.")
    ] = False,
) -> None:
    """Measure the real machine into tables."""
    from raysim.cli import measure as verb

    options = verb.MeasureOptions(
        out=out, budget=budget, quick=quick, device=device, backend=backend, ranks=ranks,
        cases=cases, quiet=quiet,
    )  # fmt: skip
    verb.measure(what, options)


def validate(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASES",
            help="Workload files, folders or parts of their names, or published cases; "
            "by default all.",
        ),
    ] = None,
    *,
    real: Annotated[
        bool,
        typer.Option("--real", help="First run the workloads on real Ray, on local clusters."),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run them on this Ray cluster; auto finds it."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Measured tables to compare with; by default the newest."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Constants of the measured machine.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder of REPORT.md; by default validation."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of the real side: begin nothing later than this."),
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Of the real side: repetitions of each workload.")
    ] = 3,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals", help="Also write raysim's tables of intervals from the rows compared."
        ),
    ] = False,
) -> None:
    """Compare predictions with measurements, row by row."""
    from raysim.cli import validate as verb

    options = verb.ValidateOptions(
        real=real, address=address, against=against, profile=profile, out=out, budget=budget,
        repeat=repeat, intervals=intervals,
    )  # fmt: skip
    verb.validate(tuple(cases or ()), options)


def calibrate(
    folder: Annotated[
        Path, typer.Argument(metavar="DATA", help="A folder of measured tables, by date.")
    ],
    *,
    names: Annotated[
        str | None,
        typer.Option(
            "--fit", metavar="A,B", help="Constants to fit; by default those most programs need."
        ),
    ] = None,
    family: Annotated[
        str,
        typer.Option(metavar="NAME", help="replay_NAME_calibration.csv; or training."),
    ] = "ray_core",
    workloads: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where they are; by default validation/workloads."),
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Workloads, by parts of names, not to fit but to judge."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Profile to write.")
    ] = Path("profile.yaml"),
    processes: Annotated[int, typer.Option(min=1, help="That predict at one time.")] = 1,
) -> None:
    """Fit constants of a machine on its calibration rows; write a profile."""
    from raysim.cli import calibrate as verb

    options = verb.CalibrateOptions(
        names=names, family=family, workloads=workloads, hold=hold, out=out, processes=processes
    )
    verb.calibrate(folder, options)
