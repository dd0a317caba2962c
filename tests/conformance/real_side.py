"""Runs a program on the real Ray, on a declared cluster of several raylets of this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.conformance.cluster import (
    ADD_NODE,
    KILL_NODE,
    ClusterDeclaration,
    NodeDeclaration,
    declared_by,
    parse_nodes,
    wants_dashboard,
)

PROGRAM_SECONDS = 120
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
"""A killed node is noticed in 1 s instead of 15 s; nothing printed depends on it."""


class RealCluster:
    """The cluster that was started last; another declaration starts another."""

    def __init__(self) -> None:
        self.cluster: Any = None
        self.key: tuple[str, bool] | None = None
        self.nodes: dict[str, Any] = {}
        self.named = False

    def want(self, declared: ClusterDeclaration, *, dashboard: bool) -> None:
        """Have the declared cluster running and unused."""
        if self.key == (declared.text, dashboard) and self.settled():
            return
        self.stop()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A background job ignores it, and so would the workers: nothing could be cancelled.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(SETTINGS)
        os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rc", dir="/tmp")
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(shutdown_at_exit=True)
        self.named = declared.named
        head = {"include_dashboard": dashboard, "_system_config": FAST_HEALTH_CHECKS}
        for node in declared.nodes:
            self.add(node, **head)
            head = {}
        self.key = None if declared.disturbed else (declared.text, dashboard)

    def add(self, node: NodeDeclaration, **more: Any) -> None:
        """Start a node; ids sort in the order of starting."""
        number = len(self.nodes)
        resources = dict(node.resources)
        if self.named:
            resources[f"n{number}"] = 1
        if node.memory_bytes is not None:
            more["memory"] = node.memory_bytes
        if node.object_store_bytes is not None:
            more["object_store_memory"] = node.object_store_bytes
        os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = f"{number + 1:056x}"
        self.nodes[f"n{number}"] = self.cluster.add_node(
            num_cpus=node.num_cpus,
            num_gpus=node.num_gpus,
            resources=resources,
            labels=node.labels,
            node_name=f"n{number}",
            **more,
        )
        del os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"]

    def settled(self) -> bool:
        """Whether the last program's resources came back."""
        state = self.cluster.global_state
        until = time.monotonic() + 10
        while time.monotonic() < until:
            free = state.available_resources()
            total = state.cluster_resources()
            wanted = [name for name in total if "memory" not in name and "_group_" not in name]
            if all(free.get(name) == total[name] for name in wanted):
                return True
            time.sleep(0.1)
        return False

    def act(self, line: str) -> None:
        """Do what a printed line asks for."""
        if line.startswith(KILL_NODE):
            name = line.removeprefix(KILL_NODE).strip()
            self.cluster.remove_node(self.nodes[name], allow_graceful=False)
        elif line.startswith(ADD_NODE):
            for node in parse_nodes(line.removeprefix(ADD_NODE)):
                self.add(node)

    def run(self, program: Path) -> list[str]:
        """The program's own lines; `@exit N` is added if it ended with N other than 0."""
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", LAUNCHER, program.name],
            cwd=program.parent,
            env=os.environ | {"RAY_ADDRESS": self.cluster.address, "RAY_LOG_TO_DRIVER": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(child.stderr))  # type: ignore[arg-type]
        reader.start()
        guard = threading.Timer(PROGRAM_SECONDS, child.kill)
        guard.start()
        lines = []
        for line in child.stdout:
            lines.append(line.rstrip("\n"))
            self.act(line)
        code = child.wait()
        guard.cancel()
        reader.join()
        child.stdout.close()
        child.stderr.close()
        self.errors = "".join(errors)
        return [*lines, f"@exit {code}"] if code else lines

    def stop(self) -> None:
        """End all processes of the cluster."""
        if self.cluster is not None:
            self.cluster.shutdown()
        self.cluster, self.key = None, None
        self.nodes.clear()


REAL = RealCluster()


def run_on_ray(program: Path) -> list[str]:
    """What the program prints on real Ray."""
    REAL.want(declared_by(program), dashboard=wants_dashboard(program))
    return REAL.run(program)
