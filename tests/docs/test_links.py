"""No dead links: files and headings that pages point to exist; http links have their form."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, anchors, links


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        if "://" in link:
            parts = urlsplit(link)
            if parts.scheme not in {"http", "https"} or "." not in parts.netloc:
                dead.append(link)
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        known = target.exists() and ROOT in (target, *target.parents)
        if not known or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    pages = {*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md"}
    pages |= {ROOT / name / "README.md" for name in ("notebooks", "scenarios")}
    assert sorted(p.name for p in pages - linked) == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")],
                         ids=lambda p: p.name)  # fmt: skip
def test_files_named_in_backticks_exist(page: Path) -> None:
    """`raysim/run.py` in a page is a file; patterns and files of users have no folder of ours."""
    named = re.findall(
        r"`((?:raysim|tests|scenarios|validation|notebooks)/[\w/.\-]+)`",
        page.read_text(encoding="utf-8"),
    )
    made = {"validation/data/HARDWARE/DATE"}
    assert [n for n in named if n not in made and not (ROOT / n).exists()] == []
