"""What real ranks over gloo print, for tests that compare emulated ones with them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

LAUNCHES = 4
ABORTS = "terminate called without an active exception"
"""torch's own threads abort one launch in fifty while gloo's ranks end."""


def said_by(command: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Lines of a launch that ended as it should; ``environ`` None: this process's own."""
    ours = dict(os.environ if environ is None else environ)  # emulated ones leave theirs in C's
    for _ in range(LAUNCHES):
        real = subprocess.run(
            command, env=ours, check=False, capture_output=True, text=True, timeout=180
        )
        if real.returncode == 0:
            break
        assert real.returncode == -signal.SIGABRT or ABORTS in real.stderr, real.stderr
    return real.stdout.splitlines()
