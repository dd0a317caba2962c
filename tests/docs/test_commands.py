"""What the documentation tells people to type works: commands, Python, YAML and ``--set`` keys.

Blocks of a page run in the page's order, in a folder as a user has it. A command whose comment says
``exits with 1`` must do that, any other must succeed.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main

from raysim import load
from raysim.cli import main
from raysim.cli.app import app
from raysim.cli.run import parse_changes
from tests.docs.pages import PAGES, ROOT, Block, blocks, code, prose

NOT_RUN = {
    r"python -m tests\.": "developers' tools on seeds and recordings, with tests of their own",
    r"python scenarios/scripts/": "many runs each; tests of their own hold what they print",
    r"make ": "installs packages; the tests run inside of it",
    r"\. \.venv/bin/activate": "the tests' environment is there already",
    r"git (clone|diff)": "downloads; looks at a working tree",
    r"python -m pytest|pytest |ruff ": "the suite itself",
    r"raysim calibrate node": "needs what the commands before it measure on a GPU",
    r"raysim measure (ray|gpu|host|step|scripts|collectives)": "a GPU's, or minutes of a machine",
    r"raysim validate .*--(real|address)": "starts real Ray clusters, for minutes",
    r"raysim validate( runs| mpt runs.*| ray_core/tasks mpt| scripts)?$": "minutes: many rows",
    r"raysim validate ray_core": "minutes: all programs again",
    r"raysim plan .*--on ray": "needs a Ray cluster",
    r"raysim calibrate validation": "two minutes of a core; the same on few rows is a unit test",
}  # fmt: skip
"""Pattern at a command's beginning, and why it is not run here. Reviewed: keep it short."""
COMMAND = re.compile(r"(raysim|make|python|pip|pytest|git|ruff|\.) ")
USERS_FILES = {
    "config.json": "scenarios/bert_mrpc_zero3/config.json",
    "ds.json": "scenarios/bert_mrpc_zero3/ds_config.json",
    "cluster.yaml": "scenarios/bert_mrpc_zero3/raycluster.yaml",
}
"""As a user has them: small ones, so that pages are quick."""
WITH_COMMANDS = [page for page in PAGES if any(
    COMMAND.match(line) for block in blocks(page) if block.language in {"", "sh", "bash"}
    for line in block.text.splitlines()
)]  # fmt: skip


@pytest.fixture
def users_folder(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository's scenarios and validation, and a user's own files."""
    for name in ("scenarios", "raysim", "tests"):
        (in_tmp / name).symlink_to(ROOT / name)
    (in_tmp / "validation").mkdir()
    for name in ("data", "workloads"):
        (in_tmp / "validation" / name).symlink_to(ROOT / "validation" / name)
    shutil.copytree(ROOT / "validation/compared", in_tmp / "validation/compared")
    for name, source in USERS_FILES.items():
        shutil.copy(ROOT / source, in_tmp / name)
    monkeypatch.setenv("BROWSER", "true")
    return in_tmp


def commands(block: Block) -> list[str]:
    """Lines of a shell block; others of an indented block are layouts and pictures."""
    if block.language not in {"", "sh", "bash"}:
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "":
        return [
            line
            for line in lines
            if COMMAND.match(line) and not re.match(r"raysim +-|raysim/", line)
        ]
    return [line for line in lines if line.strip() and not line.startswith("#")]


def reason(line: str) -> str | None:
    bare = line.partition("  #")[0].strip()
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, bare)), None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what a program's libraries warn of is its own affair
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_of_a_page_work(page: Path, users_folder: Path) -> None:
    for block in blocks(page):
        for line in commands(block):
            if reason(line) is not None:
                continue
            words = shlex.split(line, comments=True)
            assert words[0] == "raysim", f"{block.name}: cannot run {line!r}; see NOT_RUN"
            expected = 1 if "exits with 1" in line else 0
            assert main(words[1:]) == expected, f"{block.name}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [b for page in PAGES for b in blocks(page) if b.language == "python"],
    ids=lambda b: b.name,
)
def test_python_of_a_page_works(block: Block, users_folder: Path) -> None:
    exec(compile(block.text, block.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    "block",
    [b for page in PAGES for b in blocks(page) if b.language == "yaml"],
    ids=lambda b: b.name,
)
def test_scenarios_of_a_page_load(block: Block, in_tmp: Path) -> None:
    main_job = ROOT / "scenarios/llama3_8b_zero3"
    shutil.copy(main_job / "raycluster.yaml", "cluster.yaml")
    for name in ("config.json", "ds_config.json"):
        shutil.copy(main_job / name, name)
    Path("scenario.yaml").write_text(block.text)
    assert load("scenario.yaml").name


def test_what_is_not_run_is_there() -> None:
    """No reason is left for commands that no page has any more."""
    said = [line for page in PAGES for block in blocks(page) for line in commands(block)]
    bare = [line.partition("  #")[0].strip() for line in said]
    assert [p for p in NOT_RUN if not any(re.match(p, line) for line in bare)] == []


def inline() -> list[tuple[str, str]]:
    """`raysim ...` in backticks, in all pages."""
    return [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        for text in code(" ".join(prose(page).split()))
        if re.match(r"raysim [a-z][a-z-]*( |$)", text) and "|" not in text and "..." not in text
    ]


def test_commands_in_sentences_have_options_that_exist() -> None:
    group = typer.main.get_command(app)
    wrong = []
    for page, text in inline():
        words = shlex.split(text)
        if words[1] == "help":  # of the manual, beside the verbs
            continue
        verb = group.commands.get(words[1])  # type: ignore[attr-defined]
        flags = {w.partition("=")[0] for w in words[2:] if re.match(r"--[a-z]", w)}
        known = {o for p in verb.params for o in p.opts} if verb else set()
        if verb is None or flags - known - {"--help"}:
            wrong.append(f"{page}: {text}")
    assert wrong == []


def tried() -> list[tuple[str, tuple[str, ...]]]:
    """``--set KEY=VALUE`` that a scenario's README names in backticks, with the scenario."""
    found = []
    for page in sorted((ROOT / "scenarios").glob("*/README.md")):
        for text in code(" ".join(page.read_text(encoding="utf-8").split())):
            words = shlex.split(text)
            sets = [b for a, b in itertools.pairwise(words) if a == "--set"]
            if sets and "$" not in text:
                found.append((page.parent.name, tuple(sets)))
    return found


@pytest.mark.parametrize(("scenario", "changes"), tried())
def test_what_a_scenario_says_to_try_is_accepted(scenario: str, changes: tuple[str, ...]) -> None:
    given = parse_changes(changes)
    assert load(ROOT / "scenarios" / scenario, given).name
