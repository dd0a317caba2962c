"""The controller: keeps as many replicas as are wanted, a proxy where they are, and tells routers.

Real counterpart: ``ServeController`` of ``_private/controller.py``, ``proxy_state.py`` (ray 2.60):
one loop that steps and sleeps 0.1 s. Only steps that find something are played, at the loop's
instants. Health checks that pass cost nothing; one that fails is worked out: a dead replica or
proxy is found at its next check after Ray Core knows, or at once if a check was under way.

Not modelled: checkpoints in the KV store and recovery; the loop's own time with thousands of
replicas; replicas that live and fail their checks.
"""

from __future__ import annotations

from inspect import isgenerator
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import Nodes, WatchNodes
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import (
    Script,
    ask_gcs,
    drive,
    make_group,
    remove_group,
    sleep,
    wait_group,
)
from raysim.raycore.tasks import ActorOptions, NodeAffinity, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle, imports
from raysim.raylibs.serve.autoscaling import HandleReport
from raysim.raylibs.serve.config import ApplicationConfig, DeploymentConfig
from raysim.raylibs.serve.deployment_state import DeploymentState, ReplicaRecord
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.processes import ASYNC, ServeProxy, ServeReplica
from raysim.raylibs.serve.timeline import Timeline
from raysim.units import NS_PER_S, to_ns

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "ray.serve"


class ServeController:
    """The actor; ``CONTROLLER`` is its class.

    Parameters
    ----------
    process
        Its process.
    instance
        What it shares with replicas, proxies and clients.
    timeline
        Where it writes down what it does.
    """

    def __init__(self, process: CoreProcess, instance: Instance, timeline: Timeline) -> None:
        self._process = process
        self._instance = instance
        self._timeline = timeline
        d = instance.defaults
        self._began_ns = process.now_ns
        self._interval_ns = to_ns(d.control_loop_interval_s + d.control_step_s)
        self._armed_ns = -1
        self._deployments: dict[str, DeploymentState] = {}
        self._told: dict[str, tuple[str, ...]] = {}
        self._constructors_left: dict[str, int] = {}
        self._draining: dict[NodeID, int] = {}
        self._alive: dict[NodeID, None] = {}
        self._proxies: dict[NodeID, ActorHandle | None] = {}
        """Those wanted; None until it is made."""
        self._checks = instance.rng("serve/health_checks")
        self._on_status: list[Callable[[str], object]] = []
        self._on_proxy: list[Callable[[None], object]] = []
        instance.push = self._receive

    # ---- calls

    def deploy_application(self, app: ApplicationConfig) -> Script:
        """Every deployment is started, or updated; those the application no longer has end.

        The loop takes applications up at the end of a step, and does something about them in the
        next (``run_control_loop_step``): returns when they are taken up.
        """
        first = not self._deployments
        yield sleep(self._step_after(self._process.now_ns) - self._process.now_ns)
        self._instance.take(app)
        for config in app.deployments:
            if config.name in self._deployments:
                self.redeploy(config)
            else:
                self._constructors_left[config.name] = config.constructor_fails
                self._deployments[config.name] = DeploymentState(config, self._instance.defaults)
            self._timeline.target(config.name, self._now_s, self._deployments[config.name].target)
        self._delete(set(self._deployments) - {d.name for d in app.deployments})
        if first:
            self._know((yield ask_gcs(WatchNodes())))
            drive(self._process, self._watch_nodes)
        self.wake()

    def delete_application(self) -> None:
        """No deployment is wanted any more."""
        self._delete(set(self._deployments))

    def _delete(self, names: set[str]) -> None:
        for name, state in self._deployments.items():
            if name in names and state.target:
                state.delete()
                self._timeline.target(name, self._now_s, 0)
        self.wake()

    def redeploy(self, config: DeploymentConfig) -> None:
        """One deployment, with another version or other options."""
        self._deployments[config.name].redeploy(config)
        self._constructors_left[config.name] = config.constructor_fails
        self._instance.update_config(config)
        self.wake()

    def when_settled(self, fn: Callable[[str], object]) -> None:
        """``fn(status)`` once the application runs or has failed: RUNNING, or why not."""
        self._on_status.append(fn)
        self.wake()

    def when_proxied(self, fn: Callable[[None], object]) -> None:
        """``fn(None)`` once a proxy takes requests, or none is wanted."""
        self._on_proxy.append(fn)
        self.wake()

    def statuses(self) -> dict[str, DeploymentState]:
        """Every deployment as it is now."""
        return dict(self._deployments)

    def lacking(self) -> list[str]:
        """Deployments with fewer replicas than they should have, in words."""
        return [
            f"{name} has {len(s.serving)} of {s.target} replicas"
            for name, s in self._deployments.items()
            if len(s.serving) < s.target
        ]

    def beside(self, instance: Instance, timeline: Timeline) -> Script:
        """Another application's controller in the same process, for ``Running``.

        The first call is answered when Serve is imported.
        """
        process = self._process
        yield from imports(process, LIBRARY, process.costs.serve_replica_core_s)
        if instance is self._instance:
            return self
        return ServeController(self._process, instance, timeline)

    def apply(self, controller: ServeController, method: str, *args: Any) -> Script:
        """Call one of the controllers here."""
        found = getattr(controller, method)(*args)
        return (yield from found) if isgenerator(found) else found

    # ---- the loop

    @property
    def _now_s(self) -> float:
        return self._process.now_ns / NS_PER_S

    def wake(self, at_s: float | None = None) -> None:
        """The loop finds something at its first step from now on, or from a later second on."""
        now_ns = self._process.now_ns
        due_ns = now_ns if at_s is None else max(now_ns, to_ns(at_s))
        step_ns = self._step_after(due_ns)
        if self._armed_ns <= now_ns or step_ns < self._armed_ns:
            self._armed_ns = step_ns
            self._process.after(step_ns - now_ns, self._step, step_ns)

    def _step_after(self, due_ns: int) -> int:
        """The loop's first step at or after that moment which is still to come."""
        steps = -(-(due_ns - self._began_ns) // self._interval_ns)
        step_ns = self._began_ns + max(steps, 1) * self._interval_ns
        return step_ns if step_ns > self._process.now_ns else step_ns + self._interval_ns

    def _step(self, step_ns: int) -> None:
        if step_ns != self._armed_ns:  # an earlier one was armed since
            return
        self._armed_ns = -1
        for name, state in self._deployments.items():
            state.check(self._draining)
            self._tell(name, state)
        for name, state in self._deployments.items():
            self._autoscale(name, state)
        busy = self._busy_nodes()
        for name, state in self._deployments.items():
            plan = state.plan(self._draining, busy, self._head)
            for record, graceful in plan.stop:
                self._run(self._stop(record, graceful))
            for _ in range(plan.start):
                self._run(self._start(state.new_record(self._process.now_ns)))
            self._tell(name, state)
        self._place_proxies()
        self._say_status()

    def _run(self, script: Script) -> None:
        drive(self._process, lambda _: script)

    def _tell(self, name: str, state: DeploymentState) -> None:
        """Routers hear of replicas that came or went."""
        serving = state.serving
        ids = tuple(r.replica_id for r in serving)
        if ids != self._told.get(name, ()):
            self._told[name] = ids
            self._instance.broadcast(name, serving)
            self._timeline.running(name, self._now_s, len(serving))
            if state.autoscaling is not None:
                state.autoscaling.set_running(ids)

    def _say_status(self) -> None:
        if self._on_proxy and (self._instance.proxies or not self._instance.with_proxies):
            served, self._on_proxy = self._on_proxy, []
            for tell in served:
                tell(None)
        if not self._on_status:
            return
        statuses = [s.status for s in self._deployments.values()]
        failed = [n for n, s in self._deployments.items() if s.status == "DEPLOY_FAILED"]
        if failed:
            said = f"{failed[0]}: {self._deployments[failed[0]].why_failed}"
        elif all(s == "HEALTHY" for s in statuses):
            said = "RUNNING"
        else:
            return
        told, self._on_status = self._on_status, []
        for fn in told:
            fn(said)

    # ---- autoscaling

    def _receive(self, deployment: str, report: HandleReport) -> None:
        """A handle's report, on its way from the handle's process."""
        delay_ns = to_ns(self._instance.costs.transit_s)
        if self._process.state == "up":  # type: ignore[attr-defined]
            self._process.after(delay_ns, self._received, (deployment, report))

    def _received(self, said: tuple[str, HandleReport]) -> None:
        deployment, report = said
        state = self._deployments[deployment]
        if state.autoscaling is not None:
            state.autoscaling.report(report)
            self.wake()

    def _autoscale(self, name: str, state: DeploymentState) -> None:
        scaling = state.autoscaling
        if scaling is None or state.failed:
            return
        now_s = self._now_s
        target = scaling.decide(state.target, now_s)
        if target != state.target:
            state.target = target
            self._timeline.target(name, now_s, target)
        look_s = scaling.next_look_s(state.target, now_s)
        if look_s is not None:
            self.wake(look_s)

    # ---- replicas

    def _busy_nodes(self) -> dict[NodeID, int]:
        busy: dict[NodeID, int] = {}
        for state in self._deployments.values():
            for record in state.of("RUNNING"):
                busy[record.node_id] = busy.get(record.node_id, 0) + 1
        return busy

    def _start(self, record: ReplicaRecord) -> Script:
        config = record.config
        cls = ActorClass(
            cls=ServeReplica, resources=config.resources, strategy="SPREAD", actor=ASYNC
        )
        if config.placement_group_bundles:
            bundles = [ResourceSet.of(dict(b)) for b in config.placement_group_bundles]
            record.group = yield make_group(bundles, config.placement_group_strategy)
            yield wait_group(record.group)
            if record.stopped:
                return
            cls = cls.in_group(record.group, 0)
        handle = yield from cls.remote(self._instance, record)
        record.handle = handle
        left = self._constructors_left[config.name]
        self._constructors_left[config.name] = max(0, left - 1)
        answer = yield from handle.ask("initialize_and_get_metadata", left > 0)
        if isinstance(answer, TaskError):
            record.failed = answer.message or answer.error_type
            self.wake()
            return
        self.wake()
        if getattr(record.replica.code if record.replica else None, "checks_health", False):
            self._run(self._ask_health(record))
        ended = yield from handle.ask("watch")
        if isinstance(ended, TaskError) and not record.stopped:
            yield from self._died(record)

    def _died(self, record: ReplicaRecord) -> Script:
        """Ray Core says so: routers know, and the next health check will."""
        if record.replica is not None:
            if self._instance.on_death is not None:
                self._instance.on_death(record.replica)
            self._instance.replica_died(record.replica)
        period_s, d = record.config.health_check_period_s, self._instance.defaults
        now_ns, check_ns = self._process.now_ns, record.started_ns
        died_ns = record.died_ns if record.died_ns >= 0 else now_ns
        while check_ns < died_ns:  # checks that passed
            spread = d.health_check_jitter_frac * (2 * self._checks.random() - 1)
            check_ns += to_ns(period_s * (1 + spread))
        yield sleep(max(0, check_ns - now_ns))
        record.unhealthy = True
        self.wake()

    def _ask_health(self, record: ReplicaRecord) -> Script:
        """The program's own ``check_health``: a replica that says so often enough is replaced.

        It runs in the replica's process; the calls of Ray Core that ask for it are left out, as
        they are where a replica has none.
        """
        d, failed = self._instance.defaults, 0
        code: Any = record.replica.code if record.replica is not None else None
        while failed < d.unhealthy_threshold:
            spread = d.health_check_jitter_frac * (2 * self._checks.random() - 1)
            yield sleep(to_ns(record.config.health_check_period_s * (1 + spread)))
            if record.stopped or record.died_ns >= 0:
                return
            found = yield from code.check_health()
            failed = failed + 1 if isinstance(found, TaskError) else 0
        record.unhealthy = True
        self.wake()

    def _stop(self, record: ReplicaRecord, graceful: bool) -> Script:
        """Its last requests, then ``ray.kill``."""
        handle = record.handle
        if graceful and handle is not None and record.replica is not None:
            timeout_ns = to_ns(record.config.graceful_shutdown_timeout_s)
            yield from handle.ask("perform_graceful_shutdown", timeout_ns=timeout_ns)
        record.stopped = True
        if handle is not None:
            yield handle.kill()
        if record.group is not None:
            yield remove_group(record.group)
        if record.replica is not None:
            self._instance.replica_died(record.replica)
        self.wake()

    # ---- nodes and proxies

    @property
    def _head(self) -> NodeID:
        return self._process.me.node_id

    def _know(self, nodes: Any) -> None:
        self._alive = {row.node_id: None for row in nodes.rows}
        self._draining = dict(nodes.deadlines_ns)

    def _watch_nodes(self, _process: CoreProcess) -> Script:
        seen = -1
        while True:
            nodes = yield ask_gcs(WatchNodes(seen))
            if not isinstance(nodes, Nodes):  # the GCS is gone, and this process soon
                return
            seen = nodes.version
            self._know(nodes)
            self.wake()

    def _place_proxies(self) -> None:
        """One on the head, and on every node with a replica; the others drain."""
        if not self._instance.with_proxies:
            return
        wanted = {self._head: None}
        for state in self._deployments.values():
            for record in state.of("STARTING", "RUNNING", "PENDING_MIGRATION"):
                if record.node_id >= 0:
                    wanted[record.node_id] = None
        for node_id in wanted:
            if node_id not in self._proxies and node_id in self._alive:
                self._proxies[node_id] = None
                self._run(self._proxy(node_id))
        for node_id in [n for n in self._proxies if n not in wanted]:
            if self._proxies[node_id] is not None:
                handle = self._proxies.pop(node_id)
                self._run(self._drain(node_id, handle))

    def _proxy(self, node_id: NodeID) -> Script:
        cls = ActorClass(cls=ServeProxy, strategy=NodeAffinity(node_id=node_id), actor=ASYNC)
        handle = yield from cls.remote(self._instance)
        ready = yield from handle.ask("ready")
        if not isinstance(ready, TaskError):
            self._proxies[node_id] = handle
            self.wake()
            ready = yield from handle.ask("watch")
        if isinstance(ready, TaskError) and self._proxies.get(node_id, handle) in (None, handle):
            period_s = self._instance.defaults.proxy_health_check_period_s
            yield sleep(to_ns(period_s * self._checks.random()))
            self._proxies.pop(node_id, None)
            self.wake()

    def _drain(self, node_id: NodeID, handle: ActorHandle | None) -> Script:
        """No replica is left there: balancers look away, and it ends when it is idle."""
        assert handle is not None, "a proxy that was never made"
        d = self._instance.defaults
        proxy = self._instance.proxies.pop(node_id, None)
        yield sleep(to_ns(d.proxy_min_draining_period_s))
        while proxy is not None and proxy.open and not proxy.dead:
            yield sleep(to_ns(d.proxy_drain_check_period_s))
        yield from handle.ask("drain")
        yield handle.kill()


CONTROLLER = ActorClass(
    cls=ServeController,
    resources={"node:__internal_head__": 0.001},
    actor=ActorOptions(name="SERVE_CONTROLLER_ACTOR", is_async=True),
)
"""``HEAD_NODE_RESOURCE_NAME`` keeps it on the head."""
