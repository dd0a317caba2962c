"""Real Ray on this host: a cluster of several raylets from a declaration, and programs run on it.

``ray.cluster_utils.Cluster`` starts GCS and raylets as processes of this host, which share its
cores, memory and disk; what each offers is declared.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.machine import installed
from raysim.scenario.declaration import (
    ADD_NODE,
    KILL_NODE,
    ClusterDeclaration,
    NodeDeclaration,
    parse_nodes,
)

PROGRAM_SECONDS = 120.0
SETTLE_SECONDS = 10.0
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
LAUNCHER = """
import runpy, sys
from ray._private import worker
worker.print_to_stdstream = lambda *arguments, **options: None
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""The program as it is, in a process where Ray prints none of its own notices to stdout."""
FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}
"""A killed node is noticed in 1 s instead of 15 s; only where one is killed, for a busy machine's
node may be slow to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What a program left."""

    lines: list[str]
    """Of standard output; `@exit N` is added if it ended with N other than 0."""
    errors: str
    """Standard error."""
    code: int
    seconds: float
    """Of the whole process, imports included."""


def run_program(
    program: Path,
    address: str,
    *,
    limit_s: float = PROGRAM_SECONDS,
    heard: Callable[[str], None] = lambda _: None,
) -> Printed:
    """Run a driver on the cluster at ``address``; it is killed after ``limit_s``.

    ``heard`` is told each line of its output as it comes.
    """
    began_s = time.monotonic()
    child = subprocess.Popen(  # noqa: S603  (the user's own program)
        [sys.executable, "-u", "-c", LAUNCHER, program.name],
        cwd=program.parent,
        env=os.environ | SETTINGS | {"RAY_ADDRESS": address, "RAY_LOG_TO_DRIVER": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=errors.extend, args=(child.stderr,))
    reader.start()
    guard = threading.Timer(limit_s, child.kill)
    guard.start()
    lines = []
    try:
        for line in child.stdout:
            lines.append(line.rstrip("\n"))
            heard(line)
        code = child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        guard.cancel()
        reader.join()
        child.stdout.close()
        child.stderr.close()
    if code:
        lines.append(f"@exit {code}")
    seconds = time.monotonic() - began_s
    return Printed(lines=lines, errors="".join(errors), code=code, seconds=seconds)


class LocalCluster:
    """The cluster that was started last; another declaration starts another.

    Use as a context, or call ``stop``: processes of the cluster are ended.
    """

    def __init__(self) -> None:
        self._cluster: Any = None
        self._key: tuple[str, bool] | None = None
        self._nodes: dict[str, Any] = {}
        self._named = False
        self._folder: str | None = None
        self.errors = ""
        """Standard error of the last program."""

    def __enter__(self) -> LocalCluster:
        """The cluster itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()

    @property
    def address(self) -> str:
        """Of its GCS."""
        return str(self._cluster.address)

    def want(self, declared: ClusterDeclaration, *, dashboard: bool = False) -> None:
        """Have the declared cluster running and unused.

        Raises
        ------
        CalibrationError
            Ray is not installed, or the cluster does not start.
        """
        if self._key == (declared.text, dashboard) and self._settled():
            return
        self.stop()
        if installed("ray") is None:
            raise CalibrationError("ray is not installed: pip install 'raysim[real]'")
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A background job ignores it, and so would the workers: nothing could be cancelled.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(SETTINGS)
        self._folder = tempfile.mkdtemp(prefix="rc")
        os.environ["RAY_TMPDIR"] = self._folder
        try:
            self._start(declared, dashboard=dashboard)
        except Exception as error:
            self.stop()
            raise CalibrationError(
                f"the cluster {declared.text} does not start: {error}"
            ) from error
        self._key = None if declared.disturbed else (declared.text, dashboard)

    def _start(self, declared: ClusterDeclaration, *, dashboard: bool) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(shutdown_at_exit=True)
        self._named = declared.named
        head: dict[str, Any] = {"include_dashboard": dashboard}
        if declared.disturbed:
            head["_system_config"] = FAST_HEALTH_CHECKS
        for node in declared.nodes:
            self._add(node, **head)
            head = {}

    def run(self, program: Path, *, limit_s: float = PROGRAM_SECONDS) -> Printed:
        """Run a driver, and do what lines of its output ask for."""
        printed = run_program(program, self.address, limit_s=limit_s, heard=self._act)
        self.errors = printed.errors
        return printed

    def stop(self) -> None:
        """End all processes of the cluster, and forget its files."""
        if self._cluster is not None:
            self._cluster.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._cluster, self._key, self._folder = None, None, None
        self._nodes.clear()

    def _add(self, node: NodeDeclaration, **more: Any) -> None:
        """Start a node; ids sort in the order of starting."""
        number = len(self._nodes)
        resources = dict(node.resources)
        if self._named:
            resources[f"n{number}"] = 1
        if node.memory_bytes is not None:
            more["memory"] = node.memory_bytes
        if node.object_store_bytes is not None:
            more["object_store_memory"] = node.object_store_bytes
        os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = f"{number + 1:056x}"
        self._nodes[f"n{number}"] = self._cluster.add_node(
            num_cpus=node.num_cpus,
            num_gpus=node.num_gpus,
            resources=resources,
            labels=node.labels,
            node_name=f"n{number}",
            **more,
        )
        del os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"]

    def _settled(self) -> bool:
        """Whether the last program's resources came back."""
        state = self._cluster.global_state
        until_s = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until_s:
            free = state.available_resources()
            total = state.cluster_resources()
            wanted = [name for name in total if "memory" not in name and "_group_" not in name]
            if all(free.get(name) == total[name] for name in wanted):
                return True
            time.sleep(0.1)
        return False

    def _act(self, line: str) -> None:
        """Do what a printed line asks for."""
        if line.startswith(KILL_NODE):
            name = line.removeprefix(KILL_NODE).strip()
            self._cluster.remove_node(self._nodes[name], allow_graceful=False)
        elif line.startswith(ADD_NODE):
            for node in parse_nodes(line.removeprefix(ADD_NODE)):
                self._add(node)
