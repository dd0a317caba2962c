"""The manual: every verb has a page, every option a heading, every example runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.cli.app import app
from raysim.cli.manual import GROUPS, PAGES

ELSEWHERE = {
    "raysim measure gpu --budget 10min": "needs a GPU",
    "torchrun --nproc-per-node 8 -m raysim measure collectives": "needs eight",
    "raysim measure host --quick --out measured/here": "in test_measure_host.py",
    "raysim validate ray_serve --out checked": "the golden report does",
    "raysim validate --real --budget 10min": "needs Ray",
    "raysim calibrate measured/here": "in test_cli_calibrate.py",
    "raysim calibrate measured/here --hold data --out here.yaml": "the same",
}
"""Only parsed here, and why."""
SLOW = {"plan"}
"""Verbs whose examples take longer."""


def verbs() -> dict[str, object]:
    import typer.main

    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def arguments_of(example: str) -> list[str]:
    """Of the raysim in a command, up to a pipe."""
    words = shlex.split(example.partition(" | ")[0])
    return words[words.index("raysim") + 1 :]


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def test_every_verb_has_a_page_and_a_group() -> None:
    assert set(verbs()) == set(PAGES)
    assert {page.group for page in PAGES.values()} == set(GROUPS)
    assert all(set(page.see) <= set(PAGES) for page in PAGES.values())


@pytest.mark.parametrize("verb", PAGES)
def test_headings_name_options_that_are_there(verb: str) -> None:
    known = {o for p in verbs()[verb].params for o in p.opts}  # type: ignore[attr-defined]
    named = [name for names in PAGES[verb].options.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) <= known


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("verb", ["", *PAGES])
def test_help_fits_the_terminal_and_has_its_sections(
    verb: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = help_of(capsys, *([verb] if verb else []))
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    assert "\n\n\n" not in text
    if not verb:
        assert [g for g in GROUPS if f"\n{g}:\n" in text] == list(GROUPS)
        return
    page = PAGES[verb]
    for heading in ("Exit codes", "Examples", *page.options, "Logging"):
        assert f"\n{heading}:\n" in text
    for parameter in verbs()[verb].params:  # type: ignore[attr-defined]
        assert all(option in text for option in parameter.opts if option.startswith("-"))


def test_help_of_a_verb_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, same in ((["help"], []), (["help", "plan"], ["plan"])):
        assert main(words) == 0
        assert capsys.readouterr().out == help_of(capsys, *same)


def test_examples_survive_being_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is copied from help is the example, its continued lines included."""
    monkeypatch.setenv("COLUMNS", "60")
    for verb, page in PAGES.items():
        shown = help_of(capsys, verb).replace("\\\n", " ")
        lines = {" ".join(line.split()) for line in shown.splitlines()}
        for example in page.examples:
            assert " ".join(example.split()) in lines


EXAMPLES = [
    pytest.param(verb, example, marks=[pytest.mark.slow] if verb in SLOW else [])
    for verb, page in PAGES.items()
    for example in page.examples
    if example not in ELSEWHERE
]


@pytest.fixture
def at_the_top(in_tmp: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scenarios in it, and two runs."""
    (in_tmp / "scenarios").symlink_to(root / "scenarios")
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    return in_tmp


@pytest.mark.parametrize(("verb", "example"), EXAMPLES)
def test_an_example_runs(
    verb: str, example: str, at_the_top: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if PAGES[verb].group == "Look" and verb != "catalog":
        for name, batch in {"one": 4, "two": 8}.items():
            change = ["--set", f"train.micro_batch={batch}", "--out", f"runs/{name}"]
            assert main(["run", "scenarios/mlp_pipeline", "-q", *change]) == 0
    capsys.readouterr()
    assert main(arguments_of(example)) == 0
    out, err = capsys.readouterr()
    assert out
    assert "Traceback" not in err


@pytest.mark.parametrize("example", ELSEWHERE)
def test_an_example_for_elsewhere_parses(example: str) -> None:
    verb, *rest = arguments_of(example)
    verbs()[verb].make_context(verb, rest)  # type: ignore[attr-defined]
