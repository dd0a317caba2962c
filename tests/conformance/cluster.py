"""The programs and what real Ray printed; the grammar of their headers is in ``scenario``."""

from __future__ import annotations

from pathlib import Path

from raysim.scenario.declaration import in_running_order

PROGRAMS = Path(__file__).parent / "programs"
EXPECTED = Path(__file__).parent / "expected"


def programs() -> list[Path]:
    """All programs, in the order that starts the fewest clusters."""
    return in_running_order(PROGRAMS.glob("*.py"))


def recorded(program: Path) -> list[str]:
    """The lines that real Ray made the program print."""
    path = EXPECTED / f"{program.stem}.txt"
    return path.read_text(encoding="utf-8").splitlines()
