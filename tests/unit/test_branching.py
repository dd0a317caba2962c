"""A process that splits: what comes back, and what of a branch that dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raysim.branching import Branches
from raysim.errors import ScenarioError


def played(names: str, of: Callable[[str | None], Any], processes: int = 2) -> tuple[Any, Branches]:
    branches = Branches(names.split(), processes=processes)
    return branches.play(lambda: of(branches.split())), branches


@pytest.mark.parametrize("processes", [1, 3])
def test_what_branches_return_comes_back_by_name(processes: int) -> None:
    """More than a pipe holds, from more branches than run at a time."""
    mine, branches = played("a b c", lambda name: (name or "own") * 100_000, processes)
    assert mine == "own" * 100_000
    found = {name: end.value for name, end in branches.endings.items()}
    assert found == {name: name * 100_000 for name in "abc"}


def test_branches_do_not_touch_each_other_nor_the_parent() -> None:
    kept = [0]

    def work(name: str | None) -> list[int]:
        for _ in range(1000):
            kept[0] += 1 if name == "up" else -1
        return kept

    mine, branches = played("up down", work)
    assert (mine, kept) == ([-1000], [-1000])
    assert branches.endings["up"].value == [1000]
    assert branches.endings["down"].value == [-1000]


def test_a_branch_that_fails_says_why_and_takes_nobody_with_it() -> None:
    def work(name: str | None) -> Any:
        if name == "raises":
            raise ValueError("no such node")
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "exits":
            os._exit(7)
        return (lambda: 0) if name == "unpicklable" else "fine"

    mine, branches = played("raises killed exits unpicklable well", work)
    ends = branches.endings
    assert mine == ends["well"].value == "fine"
    assert ends["raises"].failure == "ValueError: no such node"
    assert "in work" in ends["raises"].detail
    assert ends["killed"].failure == "its process ended by signal 9"
    assert ends["exits"].failure == "its process ended by exit code 7"
    assert "cannot be sent" in ends["unpicklable"].failure


def test_what_branches_print_is_not_seen(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ", flush=False)
    played("a b", lambda name: print(name or "mine", flush=True))
    assert capfd.readouterr().out == "before mine\n"


def test_threads_of_the_work_are_missing_in_a_branch() -> None:
    """Those that were there before are somebody else's, as a notebook's."""
    leave = threading.Event()
    before = threading.Thread(target=leave.wait, name="somebody-else")
    own = threading.Thread(target=leave.wait, name="of-the-program")
    before.start()
    try:
        assert played("a", lambda name: name)[1].endings["a"].value == "a"
        branches = Branches(["a"])
        own.start()
        with pytest.raises(ScenarioError, match=r"1 threads \(of-the-program\)"):
            branches.play(branches.split)
    finally:
        leave.set()
        before.join()
        own.join()


def test_no_process_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    mine, branches = played("a", lambda name: name)
    assert mine is None
    assert "Resource temporarily unavailable" in branches.endings["a"].failure


def test_nothing_is_left_when_the_parent_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches that are under way are ended."""
    pids: list[int] = []
    fork = os.fork

    def noted() -> int:
        pid = fork()
        pids.append(pid)
        return pid

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def one_for_ever(name: str | None) -> None:
        while name == "b":
            signal.pause()

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(Branches, "_hear", interrupted)
    branches = Branches(["a", "b"], processes=2)
    with pytest.raises(KeyboardInterrupt):
        branches.play(lambda: one_for_ever(branches.split()))
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
