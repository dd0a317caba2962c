"""The ``raysim`` command: parse flags, call the public door, print, exit.

Exit codes: 0 done and targets met; 1 done, but a target is missed or the job does not fit; 2 the
user's files or flags are wrong (one line per problem, no traceback); 3 a fault of raysim (traceback
and the command that replays it); 130 interrupted. Reading order: ``app.py`` (every verb and
option), then one file per verb.
"""

from __future__ import annotations

from raysim.cli.app import main

__all__ = ["main"]
