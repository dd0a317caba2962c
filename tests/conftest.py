"""Profiles and options of the whole test suite."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from raysim.kernel.simulation import what_exists_stays

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=200,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``: write expected.txt from what is printed now; people read the diff."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite scenarios/*/expected.txt"
    )


def pytest_collection_finish() -> None:
    """The tests themselves are a million objects, at which every Ray program would look."""
    what_exists_stays()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a test leaves in cycles is little, but may hold gigabytes; what it imported stays."""
    if nextitem is None or nextitem.path != item.path:
        what_exists_stays()
    else:
        gc.collect(1)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def root() -> Path:
    """The repository's top folder."""
    return ROOT


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that runs/ is made there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
