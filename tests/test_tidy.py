"""House rules that a machine can keep: format, lint, types, import contracts, limits, words.

That every number of the catalog has a basis and a source is in ``unit/test_hardware_catalog.py``.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP = (
    ".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "notebooks",
    "pyproject.toml", "raysim", "scenarios", "tests", "validation",
)  # fmt: skip
"""All that the repository has at its top."""
FILE_LINES = 500
FUNCTION_LINES = 70
README_LINES = 40
SCENARIO_README_LINES = (5, 20)

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|TBD)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|Users|mnt|opt)/\w")
SYNONYMS = {
    r"worker[- ]nodes?": "node",
    r"(master|slave)[- ]nodes?": "head node, node",
    r"micro ?batch(es)?(?!\w)": "micro-batch, or micro_batch in code",
    r"all (gather|reduce)s?\b": "all-gather, all-reduce",
    r"vram|video memory|graphics (card|memory)": "GPU memory",
    r"time ?steps?\b": "step",
    r"optimis(er|ation)": "optimizer",
    r"(minibatch|mini-batch)(es)?\b": "micro-batch or global batch",
}
"""Words of others for things that have a name here."""
BARE_NAMES = {"time", "bw", "bandwidth", "latency", "duration"}
"""A quantity's name ends in its unit."""


GENERATED = {"REPORT.md"}
"""Written by commands, a line per row compared."""


def tracked(*suffixes: str, under: tuple[str, ...] = TOP) -> list[Path]:
    """Our text files, generated ones excluded."""
    files = [
        path
        for name in under
        for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    return sorted(
        p
        for p in files
        if p.is_file()
        and "__pycache__" not in p.parts
        and p.suffix in suffixes
        and p.name not in GENERATED
    )


SOURCES = tracked(".py", under=("raysim",))
PYTHON = tracked(".py", under=("raysim", "tests", "scenarios", "validation", "notebooks"))
PACKAGES = sorted(
    p.parent for p in SOURCES if p.name == "__init__.py" and p.parent.name != "raysim"
)
SCENARIOS = sorted(p.parent for p in (ROOT / "scenarios").glob("*/scenario.yaml"))


def say(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def nodes(*kinds: type[ast.AST], files: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield path, node


@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check .", "mypy", "lint-imports"],
    ids=lambda command: command.split(" .")[0],
)
def test_tool_is_content(command: str) -> None:
    tool, *arguments = command.split()
    done = subprocess.run(
        [Path(sys.executable).with_name(tool), *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_nothing_else_lies_at_the_top() -> None:
    done = subprocess.run(
        ["git", "ls-files"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    found = {line.split("/")[0] for line in done.stdout.splitlines()}
    assert found == set(TOP)


def test_files_are_short() -> None:
    files = tracked(".py", ".md", ".j2", ".css", ".js", ".toml", ".yaml")
    lines = {say(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    assert {name: n for name, n in lines.items() if n > FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = {}
    for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef, files=PYTHON):
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        length = (node.end_lineno or 0) - node.lineno + 1
        if length > FUNCTION_LINES:
            long[f"{say(path, node.lineno)} {node.name}"] = length
    assert long == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_package_has_a_short_readme_that_names_its_files(package: Path) -> None:
    text = (package / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    modules = [p.stem for p in package.glob("*.py") if p.stem not in {"__init__", "__main__"}]
    assert [m for m in modules if m not in text] == []


@pytest.mark.parametrize("folder", SCENARIOS, ids=lambda p: p.name)
def test_scenario_has_a_readme_that_names_its_files(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    low, high = SCENARIO_README_LINES
    assert low <= len(text.splitlines()) <= high
    names = {p.name for p in folder.iterdir()} - {"README.md", "expected.txt", "__pycache__"}
    assert [name for name in sorted(names) if name not in text] == []


def offending(pattern: str | re.Pattern[str], files: list[Path]) -> list[str]:
    """Lines that match, this file and people's own files (configs, clusters) excluded."""
    found = re.compile(pattern)
    return [
        f"{say(path, number)} {line.strip()}"
        for path in files
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if found.search(line)
    ]


WRITTEN = tracked(".py", ".md", ".j2", ".css", ".js", ".toml", "")


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine path"])
def test_nothing_is_left_unfinished_or_tied_to_a_machine(pattern: re.Pattern[str]) -> None:
    assert offending(pattern, WRITTEN) == []


@pytest.mark.parametrize("synonym", SYNONYMS, ids=SYNONYMS.get)
def test_one_word_for_one_thing(synonym: str) -> None:
    pattern = re.compile(rf"(?<![\w\"'-])({synonym})", re.IGNORECASE)
    assert offending(pattern, WRITTEN) == [], f"say {SYNONYMS[synonym]}"


def test_quantities_are_named_with_their_unit() -> None:
    bare = [
        say(path, node.lineno)
        for path, node in nodes(ast.arg, ast.AnnAssign, files=SOURCES)
        if (isinstance(node, ast.arg) and node.arg in BARE_NAMES)
        or (
            isinstance(node, ast.AnnAssign)
            and getattr(node.target, "id", "") in BARE_NAMES
            and "Section" not in ast.unparse(node.annotation)  # a key, whose value has its unit
        )
    ]
    assert bare == []


def test_code_is_ascii_but_for_what_is_printed() -> None:
    pretty = {f"raysim/report/{name}.py" for name in ("console", "console_memory", "layout")}
    wide = [say(p) for p in SOURCES if not p.read_text(encoding="utf-8").isascii()]
    assert {name.removesuffix(":0") for name in wide} <= pretty


def test_only_the_command_line_prints() -> None:
    calls = [
        say(path, node.lineno)
        for path, node in nodes(ast.Call, files=SOURCES)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and path.parent.name != "cli"
        and path.name != "console.py"
    ]
    assert calls == []


def test_randomness_comes_from_named_streams() -> None:
    allowed = {ROOT / "raysim/kernel/rng.py", ROOT / "raysim/rayapi/randomness.py"}
    others = [p for p in SOURCES if p not in allowed]
    assert offending(r"(np|numpy)\.random|default_rng", others) == []


def test_changelog_lines_are_tagged() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    tag = re.compile(r"- (BREAKING|NEW|FIX|MODEL|DOCS): ")
    assert entries
    assert [line for line in entries if not tag.match(line)] == []


@pytest.mark.slow
def test_a_wheel_carries_its_data(tmp_path: Path) -> None:
    """Catalog, tables and templates are found after a plain ``pip install``, not only in place."""
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "raysim", source / "raysim", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(source)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("raysim-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    data = tracked(".py", ".yaml", ".csv", ".j2", ".css", ".js", ".typed", under=("raysim",))
    assert {p.relative_to(ROOT).as_posix() for p in data} <= packed
