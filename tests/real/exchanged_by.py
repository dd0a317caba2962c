"""What the real ranks of a whole program exchange, as ``exchanging`` counts it.

A program of its own, for ``torchrun``: ``exchanged_by.py SCRIPT WORDS``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from exchanging import Exchanged

if __name__ == "__main__":
    del sys.argv[0]
    with Exchanged() as exchanged:
        runpy.run_path(sys.argv[0], run_name="__main__")
    found = [[*key, n] for key, n in sorted(exchanged.by_kind.items())]
    os.write(1, f"{json.dumps({'rank': int(os.environ['RANK']), 'found': found})}\n".encode())
