"""Replicas and proxies as actors of a Ray cluster.

Real counterpart: the actor classes of ``_private/replica.py`` and ``_private/proxy.py`` (ray
2.60). The controller asks; requests go by the data path (``replica.py``, ``proxy.py``), which
lives in the same process and dies with it.

Not modelled: calls of ``check_health``: the controller works out what they would find, and runs the
user's own.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.scripts import Event, Script, compute, sleep, wait_for
from raysim.raycore.tasks import ActorOptions, TaskError
from raysim.raylibs.serve.deployment_state import ReplicaRecord
from raysim.raylibs.serve.instance import Instance
from raysim.units import to_ns

ASYNC = ActorOptions(is_async=True)


class ServeReplica:
    """The actor of one replica."""

    def __init__(self, process: Any, instance: Instance, record: ReplicaRecord) -> None:
        self._process = process
        self._instance = instance
        self._record = record
        record.node_id = process.me.node_id
        self._over = Event()
        instance.watches.append((process, self._over))
        process.at_exit(self._exited)

    def initialize_and_get_metadata(self, fails: bool) -> Script:
        """Imports, then the user's constructor; TaskError if it raises."""
        record, instance = self._record, self._instance
        yield compute(self._process.costs.serve_replica_core_s)
        code = instance.code_of(self._process, record.config, record.replica_id)
        raised = yield from code.construct()
        if fails:
            raised = TaskError("TASK_EXECUTION_EXCEPTION", "the constructor raised")
        if isinstance(raised, TaskError):
            return raised
        record.replica = instance.make_replica(
            self._process, record.config, record.replica_id, code
        )
        record.started_ns = self._process.now_ns
        return None

    def perform_graceful_shutdown(self) -> Script:
        """Wait until no request is left: a look every ``graceful_shutdown_wait_loop_s``."""
        replica, config = self._record.replica, self._record.config
        while True:
            yield sleep(to_ns(config.graceful_shutdown_wait_loop_s))
            if replica is None or not replica.ongoing:
                break
        if replica is not None:
            replica.quiescing = True
        self._over.set()

    def watch(self) -> Script:
        """Returns at the end of a graceful shutdown; fails when the actor dies."""
        yield wait_for(self._over)

    def _exited(self, _reason: str) -> None:
        if self._record.died_ns < 0:
            self._record.died_ns = self._process.now_ns


class ServeProxy:
    """The actor of one node's proxy."""

    def __init__(self, process: Any, instance: Instance) -> None:
        self._process = process
        self._instance = instance
        self._over = Event()
        instance.watches.append((process, self._over))

    def ready(self) -> Script:
        """It takes requests from now on."""
        yield compute(self._instance.defaults.proxy_import_core_s)
        proxy = self._instance.make_proxy(self._process)
        node_id = self._process.me.node_id

        def exited(_reason: str) -> None:
            if self._instance.proxies.get(node_id) is proxy:
                del self._instance.proxies[node_id]
            proxy.died(self._process.now_ns)

        self._process.at_exit(exited)

    def watch(self) -> Script:
        """Returns when it has drained; fails when the actor dies."""
        yield wait_for(self._over)

    def drain(self) -> None:
        """Its last request is answered."""
        self._over.set()
