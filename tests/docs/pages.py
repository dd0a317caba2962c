"""Markdown pages as data: their code blocks, links, headings and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_PARTS = {"compared", ".venv", "node_modules"}
"""Folders whose pages are not ours."""
PAGES = sorted(
    path
    for name in ("README.md", "CONTRIBUTING.md", "raysim", "scenarios", "validation", "notebooks",
                 "tests")
    for path in ([ROOT / name] if name.endswith(".md") else (ROOT / name).rglob("*.md"))
    if not SKIPPED_PARTS & set(path.parts)
)  # fmt: skip
DOCS = ROOT / "raysim/docs"

_FENCE = re.compile(r"^```(\w*)\s*$")
_LINK = re.compile(r"!?\[[^\]\[]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """Lines of code in a page; language ``""`` where nothing says it."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Fenced blocks, and blocks indented by four that follow an empty line outside of lists."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, at = [], 0
    in_list = False
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            found.append(Block(page, at + 1, fence[1], "\n".join(lines[at + 1 : end])))
            at = end + 1
            continue
        if lines[at] and not lines[at].startswith(" "):
            in_list = bool(re.match(r"[-*]|\d+\.", lines[at]))
        if lines[at].startswith("    ") and not in_list and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(line[4:] for line in lines[at:end]).rstrip()
            found.append(Block(page, at + 1, "", text))
            at = end
            continue
        at += 1
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```\s*$", "", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Targets of links and pictures outside of code."""
    return _LINK.findall(_CODE.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """Names of the page's headings, as the usual code hosts make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", prose(page))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def rows(page: Path) -> Iterator[list[str]]:
    """Cells of every table's rows, headers and rules left out."""
    before: list[str] = []
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            before = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if set("".join(cells)) <= set("-: "):
            before = cells
        elif before:
            yield cells


def code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)
