"""Runs programs on the real Ray and writes what they print: python -m tests.conformance.record.

`record [NAME ...] [--times N] [--check]`: all programs, or those whose name contains a NAME; each
N times (default 2), which must agree. --check compares with the recording and writes nothing.
"""

from __future__ import annotations

import argparse
import difflib
import time

from tests.conformance import cluster
from tests.conformance.real_side import REAL, run_on_ray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    wrong = 0
    for program in cluster.programs():
        if asked.names and not any(name in program.stem for name in asked.names):
            continue
        began = time.monotonic()
        seen = [run_on_ray(program) for _ in range(asked.times)]
        seconds = (time.monotonic() - began) / asked.times
        path = cluster.EXPECTED / f"{program.stem}.txt"
        if asked.check:
            seen.insert(0, cluster.recorded(program))
        differing = [lines for lines in seen if lines != seen[0]]
        note = "DIFFERS" if differing else "ok"
        if seen[-1] and seen[-1][-1].startswith("@exit"):
            note += " " + seen[-1][-1]
        print(f"{program.stem:34} {seconds:5.1f} s  {len(seen[0]):3} lines  {note}", flush=True)
        if "@exit" in note:
            print(REAL.errors[-1500:], flush=True)
        if differing:
            wrong += 1
            print("\n".join(difflib.unified_diff(seen[0], differing[0], lineterm="", n=1)))
        elif not asked.check:
            path.write_text("\n".join(seen[0]) + "\n", encoding="utf-8")
    REAL.stop()
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
