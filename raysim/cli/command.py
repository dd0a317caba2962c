"""Verbs as commands: help like a manual's page, the options that all of them have.

The list of verbs is in groups. Help is plain text: its columns and headings need no colour.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from raysim.cli.manual import EXITS, GROUPS, LOGGING, PAGES, Page

WIDEST_NAME = 26
NUMBER = re.compile(r"<(int|float)\b[^>]*>")
"""What typer calls a number."""
Row = tuple[str, str]

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False,
        help="Log what is read, taken and done, on standard error; twice: everything.",
    ),
]  # fmt: skip
LogFile = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="Log to this file instead.")
]


LAUNCHERS = ("deepspeed", "torchrun", "accelerate", "fabric", "python", "python3")
"""In a scenario's place: from there on, all words are the launcher's."""


class Verb(TyperCommand):
    """A command whose help is a page of the manual."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A launcher's command line needs no ``--`` before it."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        parser.ignore_unknown_options = True  # what is wrong is said below
        given, _, _ = parser.parse_args(list(args))
        if self.name == "run" and given.get("scenario") in LAUNCHERS:
            at = len(args) - len(given["args"]) - 1
            args = [*(a for a in args[:at] if a != "--"), "--", *args[at:]]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Name, usage, what it does, options by heading, files, exit codes, examples."""
        page = PAGES.get(self.name or "", Page(group=GROUPS[0]))
        out = _Sections(formatter)
        self.format_usage(ctx, formatter)
        out.paragraphs([*inspect.cleandoc(self.help or "").split("\n\n"), *page.about])
        records = {p: record for p in self.get_params(ctx) if (record := p.get_help_record(ctx))}
        named = [p for p in records if p.param_type_name == "argument"]
        out.rows("Arguments", ((records[p][0].split(" <")[0], records[p][1]) for p in named))
        for heading, wanted in {**page.options, LOGGING: ("--verbose", "--log-file")}.items():
            group = [p for name in wanted for p in records if name in p.opts]
            out.rows(heading, (records[p] for p in group))
            named += group
        out.rows("Other options", (records[p] for p in records if p not in named))
        out.rows("Files written", page.files.items())
        out.rows("Exit codes", page.exits.items())
        out.examples(page)
        if page.see:
            also = ", ".join(f"raysim {verb}" for verb in page.see)
            out.rows("See also", [(also, "")])


class Verbs(TyperGroup):
    """All of them, in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what raysim is for, a line per verb, where to begin."""
        out = _Sections(formatter)
        self.format_usage(ctx, formatter)
        out.paragraphs(inspect.cleandoc(self.help or "").split("\n\n"))
        for group in GROUPS:
            names = [name for name in self.commands if _page(name).group == group]
            out.rows(group, [(n, self.commands[n].get_short_help_str(200)) for n in names])
        records = (p.get_help_record(ctx) for p in self.get_params(ctx))
        out.rows("Options", (record for record in records if record))
        out.rows("Exit codes of all verbs", EXITS.items())
        out.paragraphs(["`raysim help VERB` has options, files and examples of each."])


class _Sections:
    """Writes sections of two columns."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter
        self._width = min(formatter.width, 98)

    def paragraphs(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._formatter.write("\n" + "\n".join(_wrapped(text, self._width)) + "\n")

    def rows(self, heading: str, rows: Iterable[Row]) -> None:
        listed = list(rows)
        if not listed:
            return
        self._formatter.write(f"\n{heading}:\n")
        listed = [(NUMBER.sub("N", name), text) for name, text in listed]
        column = min(WIDEST_NAME, max(len(name) for name, _ in listed))
        for name, text in listed:
            self._formatter.write("".join(_row(name, text, column, self._width)))

    def examples(self, page: Page) -> None:
        if not page.examples:
            return
        self._formatter.write("\nExamples:\n")
        for command, what in page.examples.items():
            lines = textwrap.wrap(
                command, self._width - 6, subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            said = " \\\n  ".join(lines)
            self._formatter.write(f"  # {what}\n  {said}\n")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _row(name: str, text: str, column: int, width: int) -> Iterator[str]:
    """A name and its text beside it, or below it where the name is long."""
    beside = len(name) <= column
    lines = _wrapped(text, width - column - 4) or [""]
    yield f"  {name:<{column}}  {lines[0]}".rstrip() + "\n" if beside else f"  {name}\n"
    for line in lines[1 if beside else 0 :]:
        if line:
            yield f"{'':{column + 4}}{line}\n"


def _page(name: str) -> Page:
    return PAGES.get(name, Page(group=GROUPS[0]))


def logging_verb(function: Callable[..., None]) -> Callable[..., None]:
    """The verb with ``--verbose`` and ``--log-file``, which hold while it runs."""

    @functools.wraps(function)
    def run(*args: Any, verbose: int, log_file: Path | None, **options: Any) -> None:
        from raysim.cli import logs

        logs.begin(verbose, log_file)
        try:
            function(*args, **options)
        finally:
            logs.end()

    hints = get_type_hints(function, include_extras=True)
    own = [
        p.replace(annotation=hints[name])
        for name, p in inspect.signature(function).parameters.items()
    ]
    both = [
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose),
        inspect.Parameter(
            "log_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=LogFile
        ),
    ]
    run.__annotations__ = {**hints, "verbose": Verbose, "log_file": LogFile}
    run.__signature__ = inspect.Signature([*own, *both])  # type: ignore[attr-defined]
    return run
