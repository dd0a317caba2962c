"""``import raysim.rayapi as ray`` under plain ``python my_script.py``.

Real counterpart: ``ray.init()`` of a program that finds no cluster: it starts one on this machine.

Outside of ``raysim run``, ``ray.init()``, or the first call that needs a cluster, makes an emulated
one in this process. The main program becomes its driver: ``ray.get`` and its like let virtual time
pass. Which cluster:

- ``ray.init(num_cpus=4, resources={"disk": 1})``: one node that has them;
- ``ray.init(address="raysim://cluster.yaml")``, or ``RAYSIM_CLUSTER=cluster.yaml`` in the
  environment: what the file says, as ``raysim run --cluster`` takes it;
- else one plain node of 16 vCPUs.

``RAYSIM_COMPUTE`` says what user code costs, as ``--compute`` does; ``measured`` by default.
``ray.shutdown()`` ends the cluster; the next ``ray.init()`` starts another.

What differs from ``raysim run``: time is virtual only from the first ``ray.init()`` on, so read
clocks after it; it stays virtual after ``ray.shutdown()``, so that a time taken then can be
compared with one taken before, until the program ends or calls ``leave()``. Other threads, which
must have been started before, see real time and cannot call Ray. No report is written. A program
that hangs raises ``ProgramHangs`` where it waits.
"""

from __future__ import annotations

import atexit
import importlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from raysim.rayapi.compute import Compute
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.loader import emulated_world
from raysim.rayapi.session import Session

SCHEME = "raysim://"
_WORLD = ExitStack()
"""What is to be put back."""


def enter() -> None:
    """Make the main program a driver; it is not connected yet."""
    mode: Any = os.environ.get("RAYSIM_COMPUTE", "measured")
    table = None if mode in ("measured", "declared") else Path(mode)
    compute = Compute("table" if table is not None else mode, table=table)
    session = Session(_cluster, compute=compute)
    _WORLD.enter_context(emulated_world())
    _WORLD.callback(session.host(failed=_WORLD.close))
    atexit.register(leave)


def leave() -> None:
    """End the session, if there is one: the machine's time and names again."""
    atexit.unregister(leave)
    fiber = HUB.here()
    if fiber is not None and fiber.process.core is not None:
        fiber.process.session.disconnect(fiber)
    _WORLD.close()


def _cluster(request: dict[str, Any]) -> Any:
    """What ``ray.init`` with these arguments starts."""
    address = str(request.get("address") or "")
    file = address.removeprefix(SCHEME) if address.startswith(SCHEME) else ""
    file = file or os.environ.get("RAYSIM_CLUSTER", "")
    # By name: what reads cluster files stands above this package.
    make = importlib.import_module("raysim.scenario.local").local_cluster
    return make(Path(file) if file else None, request)


def driver() -> Fiber:
    """Of the session that begins here."""
    enter()
    fiber = HUB.current
    assert fiber is not None, "the main program is a driver now"
    return fiber
