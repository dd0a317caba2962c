"""``python -m tests.faults.replay SEED [shrink]``: play a seed again, and say what happened.

``python -m tests.faults.replay FIRST-LAST``: play many, and say which fail.
"""

from __future__ import annotations

import re
import sys
import time
import traceback

from tests.faults.plans import Plan, plan
from tests.faults.runs import Run, play


def shrunk(failing: Plan) -> Plan:
    """The same plan with as few faults and steps as still fail, in a way that begins alike."""
    kind = _kind(play(failing).problems)
    for what in ("faults", "steps"):
        size = max(1, len(getattr(failing, what)) // 2)
        while True:
            at = 0
            while at < len(getattr(failing, what)):
                parts = getattr(failing, what)
                fewer = failing._replace(**{what: parts[:at] + parts[at + size :]})
                if _kind(play(fewer).problems) == kind:
                    failing = fewer
                else:
                    at += size
            if size == 1:
                break
            size //= 2
    return failing


def _kind(problems: list[str]) -> str:
    """What kind of failure it is: its words without numbers."""
    return re.sub(r"\d+", "", problems[0])[:40] if problems else ""


def show(failing: Plan) -> None:
    """Plan, what is wrong, and where it broke."""
    run = Run(failing, log=True)
    outcome = run.play()
    print(failing)
    print(f"{outcome.events} events, {outcome.results} values; {outcome.digest}")
    for problem in outcome.problems:
        print("  ", problem)
    if run.failure is not None:
        traceback.print_exception(run.failure)


def many(first: int, last: int, *, check: bool = True) -> list[int]:
    """Play seeds; those that fail, one line each."""
    bad, began = [], time.perf_counter()
    for seed in range(first, last):
        outcome = play(plan(seed), check=check)
        if outcome.problems:
            bad.append(seed)
            print(f"{seed}: {outcome.problems[0][:250]} (+{len(outcome.problems) - 1})", flush=True)
    rate = (last - first) / (time.perf_counter() - began)
    print(f"{last - first} seeds, {len(bad)} fail, {rate:.1f} seeds/s", flush=True)
    return bad


def main(argv: list[str]) -> None:
    """The command line."""
    if "-" in argv[0]:
        first, last = argv[0].split("-")
        many(int(first), int(last), check="fast" not in argv)
        return
    failing = plan(int(argv[0]))
    if "shrink" in argv:
        failing = shrunk(failing)
    show(failing)


if __name__ == "__main__":
    main(sys.argv[1:])
