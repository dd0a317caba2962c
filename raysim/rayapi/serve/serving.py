"""Serve in one session: its applications, who calls them, what came of the calls.

Real counterpart: ``python/ray/serve/api.py``, ``_private/client.py`` (ray 2.60).

Not modelled: one set of proxies for several applications: each has its own.
Serve ends with the driver, which in Ray leaves it running.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.rayapi import threads
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.serve import local
from raysim.rayapi.serve.context import SERVING, DeploymentID
from raysim.rayapi.serve.deployment import Application, Built, build
from raysim.rayapi.serve.exceptions import DeploymentUnavailableError, RayServeException
from raysim.rayapi.serve.handle import Asked, DeploymentHandle
from raysim.rayapi.serve.replica import ProgramReplica
from raysim.rayapi.serve.rpc import Services, services_of
from raysim.rayapi.serve.statuses import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    ProxyStatus,
    ServeStatus,
)
from raysim.rayapi.serve.validation import HTTPOptions, check_route_prefix, gRPCOptions
from raysim.raycore.scripts import Script, now
from raysim.raylibs.nodes import cluster_nodes
from raysim.raylibs.serve.advice import never_starts
from raysim.raylibs.serve.config import DeploymentConfig
from raysim.raylibs.serve.costs import STACKS, ServeCosts
from raysim.raylibs.serve.event_loop import EventLoop, Jitter, Turns
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.request import Call, Request
from raysim.raylibs.serve.run import Running, deploy, serve_run, settle

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.session import Session

LIBRARY = "serve"
DEFAULT_NAME = "default"
NOWHERE = ("Disabled", "NoServer")
"""Of proxies."""
START_TIMEOUT_S = 3600.0
"""An application that does not run by then is given up; Ray's would wait for ever."""
_VARIABLES = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "optimized", "RAY_SERVE_ENABLE_HA_PROXY": "haproxy",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "grpc",
}  # fmt: skip


class Caller:
    """A handle's router in one process."""

    def __init__(self, served: Served, router: Any, jitter: Jitter, *, part: bool) -> None:
        self._served = served
        self._note: Any = (lambda _: None) if part else served.log.add
        """Calls of replicas are parts of requests."""
        self._router = router
        self._loop: EventLoop = router.loop
        self._jitter = jitter
        self._costs = served.instance.costs

    def send(self, response: Any, asked: Asked, model_id: str) -> None:
        """To a replica, when the router has found one."""
        process = self._router.process
        request = Request(
            self._served.numbered(), process.now_ns, self._note, model_id=model_id, asked=asked,
        )  # fmt: skip
        turns = Turns(self._loop)
        chunk = partial(self._chunk, response, turns) if asked.stream else None
        call = Call(request, self._router, partial(self._answered, response, turns), on_chunk=chunk)
        request.call = response.call = call
        turns.run(self._jitter.ns(self._costs.handle_s / 2), self._router.assign, call)

    def _answered(self, response: Any, turns: Turns, call: Call) -> None:
        cost_ns = self._jitter.ns(self._costs.handle_s / 2)
        turns.run(cost_ns, partial(self._taken, response), call)

    def _taken(self, response: Any, call: Call) -> None:
        assert call.status is not None, "answered without a status"
        call.request.end(call.status, self._router.process.now_ns)
        response.ended(call)

    def _chunk(self, response: Any, turns: Turns, call: Call) -> None:
        chunk_s = self._costs.handle_chunk_s
        cost_ns, turn_ns = self._jitter.ns(chunk_s), self._costs.turn_ns(chunk_s)
        turns.run(cost_ns, partial(self._item, response), call, turn_ns)

    def _item(self, response: Any, call: Call) -> None:
        request = call.request
        if request.first_chunk_ns < 0:
            request.first_chunk_ns = self._router.process.now_ns
        response.has_item(request.asked.items.popleft())


class Served:
    """One application."""

    def __init__(self, session: Session, built: Built, route_prefix: str | None) -> None:
        self.session = session
        self.built = built
        self.route_prefix = route_prefix
        self.log = RequestLog()
        self.running: Running | None = None
        self.instance = Instance(
            built.config, stack_costs(session), session.sim.rng, code_of=self._code_of,
            with_proxies=serve_of(session).with_proxies,
        )  # fmt: skip
        self.began_ns = session.sim.now_ns
        self.ran_ns = self.began_ns
        """When it was asked for, and when it ran for the first time."""
        self._callers: dict[tuple[int, str], Caller] = {}
        self._numbered = 0

    @property
    def name(self) -> str:
        """Of the application."""
        return self.built.config.name

    def numbered(self) -> int:
        """The next request's."""
        self._numbered += 1
        return self._numbered

    def _code_of(self, process: Any, config: DeploymentConfig, name: str) -> ProgramReplica:
        code = self.built.code[config.name]
        return ProgramReplica(
            self.session, process, config, name, app_name=self.name, code=code,
            user_config=self.built.user_configs[config.name],
        )  # fmt: skip

    # ---- deploying

    def deploy(self) -> Script:
        """Start it, or update it; ``Running``."""
        if self.running is not None:
            yield from deploy(self.running, self.built.config, timeout_s=START_TIMEOUT_S)
            for name, user_config in self.built.user_configs.items():
                for replica in list(self.instance.running[name]):
                    code: Any = replica.code
                    yield from code.reconfigure(user_config)
            return
        serve = serve_of(self.session)
        self.running = yield from serve_run(
            self.instance, timeout_s=START_TIMEOUT_S, beside=serve.first
        )
        serve.first = serve.first or self.running
        self.ran_ns = yield now()

    def delete(self) -> Script:
        """Its replicas end when they have answered."""
        assert self.running is not None, "what is deleted has been deployed"
        yield from self.running.ask("delete_application")
        yield from settle(self.running, timeout_s=START_TIMEOUT_S)
        self.instance.shut_down()

    # ---- calling

    def caller(self, state: ProcessState, deployment: str) -> Caller:
        """Of a process; made at its first call.

        Raises
        ------
        RayServeException
            There is no such deployment.
        """
        core = this_core(this_fiber())
        key = core.me.worker_id, deployment
        if key not in self._callers:
            configs = {d.name: d for d in self.built.config.deployments}
            if deployment not in configs:
                raise RayServeException(
                    f"Deployment {deployment!r} does not exist in application {self.name!r}."
                )
            process: Any = core
            name = f"handle-{core.me.worker_id}/{deployment}"
            inside = self._loop_of(state)
            loop = inside or EventLoop(process)
            router = self.instance.make_router(process, configs[deployment], name, loop)
            costs = self.instance.costs
            jitter = Jitter(self.session.sim.rng(f"serve/{name}/cost"), costs.cv)
            self._callers[key] = Caller(self, router, jitter, part=inside is not None)
        return self._callers[key]

    def _loop_of(self, state: ProcessState) -> EventLoop | None:
        """A replica's calls cost its own loop."""
        for replicas in self.instance.all_replicas.values():
            for replica in replicas:
                if getattr(replica.code, "state", None) is state:
                    return replica.loop
        return None


def stack_costs(session: Session) -> ServeCosts:
    """Of the stack that the environment asks for, on the machine's cores."""
    stack = next((s for v, s in _VARIABLES.items() if os.environ.get(v) == "1"), "default")
    return STACKS[stack].at_speed(session.env.costs.serve_speed)


class Serve:
    """All applications of a session."""

    def __init__(self) -> None:
        self.apps: dict[str, Served] = {}
        self.first: Running | None = None
        """Whose controller is every application's."""
        self.port = 8000
        self.grpc_port = 0
        self.services: Services | None = None
        """What gRPC clients may call, if anything."""
        self.with_proxies = True
        self.used = False
        """The program has deployed something."""
        self.command = ""
        """What runs an application that the program only binds."""

    def app(self, name: str) -> Served:
        """Of this name.

        Raises
        ------
        RayServeException
            There is none.
        """
        if name not in self.apps:
            raise RayServeException(f"Application '{name}' does not exist.")
        return self.apps[name]

    def finish(self) -> None:
        """The driver ends: report of what runs still."""
        for served in self.apps.values():
            if served.running is not None:
                _finish(served)


def serve_of(session: Session) -> Serve:
    """Its Serve, made at the first question."""
    found = session.libraries.get(LIBRARY)
    if found is None:
        found = session.libraries[LIBRARY] = Serve()
        session.at_end.append(found.finish)
    serve: Serve = found
    return serve


def caller_of(app_name: str, deployment: str) -> Caller:
    """The router of the process that calls."""
    state = this_fiber().process
    serve = serve_of(state.session)
    if app_name not in serve.apps:
        raise DeploymentUnavailableError(DeploymentID(deployment, app_name))
    return serve.app(app_name).caller(state, deployment)


# ---- the module's functions ------------------------------------------------------------------


@program_call
def start(
    proxy_location: Any = None, http_options: Any = None, grpc_options: Any = None, **others: Any
) -> None:
    """``serve.start``: ports, services and whether there are proxies have an effect."""
    del others
    serve, said = serve_of(session_here()), http_options or {}
    options = HTTPOptions(**said) if isinstance(said, Mapping) else said
    if "port" in options.model_fields_set:
        serve.port = options.port
    location = proxy_location or options.location
    serve.with_proxies = location not in NOWHERE
    if grpc_options is not None:
        grpc = gRPCOptions(**grpc_options) if isinstance(grpc_options, Mapping) else grpc_options
        serve.grpc_port, serve.services = grpc.port, services_of(grpc.grpc_servicer_functions)


@program_call
def run(
    target: Any,
    blocking: bool = False,
    name: str = DEFAULT_NAME,
    route_prefix: str | None = "/",
    **others: Any,
) -> DeploymentHandle:
    """Deploy an application, and wait until it runs; ``blocking`` until nothing else goes on.

    Raises
    ------
    TypeError
        It is no application.
    RuntimeError
        It cannot run.
    SystemExit
        Nobody is left who would ask a program that blocks: somebody interrupts it.
    """
    if not name:
        raise RayServeException("Application name must a non-empty string.")
    if not isinstance(target, Application):
        raise TypeError("`serve.run` expects an `Application` returned by `Deployment.bind()`.")
    check_route_prefix(route_prefix)
    if others.get("_local_testing_mode"):
        return local.deploy(target, name)
    session = session_here()
    serve, built = serve_of(session), build(target, name)
    _check_prefix(serve, name, route_prefix)
    serve.used = True
    served = serve.apps.get(name)
    if served is not None and served.built.config.ingress != built.config.ingress:
        delete(name)  # Ray starts the new ingress beside the old one, and then ends that
        served = None
    if served is None:
        served = serve.apps[name] = Served(session, built, route_prefix)
    else:
        served.built, served.route_prefix = built, route_prefix
    from raysim.rayapi.serve import clients  # what a program asks with, if it is installed

    clients.install()
    play(lambda _: served.deploy())
    running = served.running
    assert running is not None, "it has been deployed"
    if running.refusal:
        deployment, _, why = running.refusal.partition(": ")
        raise RuntimeError(
            f"Deploying application {name} failed: Failed to update the deployments "
            f"['{deployment}'].\n{why or _no_room(built)}"
        )
    if blocking:
        threads.join_all()
        raise SystemExit(0)
    return DeploymentHandle(built.config.ingress, name)


@dataclass
class RunTarget:
    """``serve.RunTarget``: an application and its place."""

    target: Any
    name: str = DEFAULT_NAME
    route_prefix: str | None = "/"
    logging_config: Any = None
    external_scaler_enabled: bool = False


def run_many(targets: Sequence[RunTarget], **options: Any) -> list[DeploymentHandle]:
    """``serve.run_many``: one after the other."""
    waits = ("wait_for_ingress_deployment_creation", "wait_for_applications_running")
    others = {name: value for name, value in options.items() if name not in waits}
    return [run(each.target, False, each.name, each.route_prefix, **others) for each in targets]


def _check_prefix(serve: Serve, name: str, prefix: str | None) -> None:
    for other, there in serve.apps.items():
        if other != name and prefix is not None and there.route_prefix == prefix:
            raise RayServeException(
                f'Prefix {prefix} is being used by application "{other}". Failed to deploy '
                f'application "{name}".'
            )


def _no_room(built: Built) -> str:
    """Of replicas that have not come, the first that never will."""
    nodes = cluster_nodes(this_core(this_fiber()))
    return next(filter(None, (never_starts(d, nodes) for d in built.config.deployments)), "")


@program_call
def delete(name: str, _blocking: bool = True) -> None:
    """End an application; nothing, if there is none."""
    del _blocking
    serve = serve_of(session_here())
    served = serve.apps.get(name)
    if served is not None:
        play(lambda _: served.delete())
        _finish(served)
        del serve.apps[name]


@program_call
def shutdown() -> None:
    """End all of them, and their controller."""
    serve = serve_of(session_here())
    for name in list(serve.apps):
        delete(name)
    first, serve.first = serve.first, None
    if first is not None:
        play(lambda _: _kill(first))


def _kill(running: Running) -> Script:
    yield running.handle.kill()


def _finish(served: Served) -> None:
    """What its requests came to, for the report."""
    from raysim.rayapi.serve.summary import report_of

    served.session.env.reports.append(report_of(served))


def get_app_handle(name: str) -> DeploymentHandle:
    """Of an application's ingress.

    Raises
    ------
    RayServeException
        There is no such application.
    """
    served = serve_of(session_here()).app(name)
    return DeploymentHandle(served.built.config.ingress, name)


def get_deployment_handle(deployment_name: str, app_name: str | None = None) -> DeploymentHandle:
    """Of any deployment; in a replica, of its own application.

    Raises
    ------
    KeyError
        There is no such deployment.
    RayServeException
        Nobody says of which application.
    """
    if app_name is None:
        serving = SERVING.get()
        if serving is None:
            raise RayServeException(
                "Please specify an application name when getting a deployment handle outside of a "
                "Serve application."
            )
        app_name = serving.replica.context.app_name
    app = serve_of(session_here()).apps.get(app_name)
    if app is None or deployment_name not in app.built.code:
        raise KeyError(f"{DeploymentID(deployment_name, app_name)} does not exist.")
    return DeploymentHandle(deployment_name, app_name)


# ---- serve.status() --------------------------------------------------------------------------


@program_call
def status() -> ServeStatus:
    """Of all applications, and of their proxies by node."""
    from raysim.raycore.ids import hex_id

    apps: dict[str, ApplicationStatusOverview] = {}
    proxies: dict[str, ProxyStatus] = {}
    for name, served in serve_of(session_here()).apps.items():
        running = served.running
        if running is None:
            continue
        deployments = {}
        for deployment, state in running.controller.statuses().items():
            states: dict[str, int] = {}
            for record in state.replicas:
                states[record.state] = states.get(record.state, 0) + 1
            deployments[deployment] = DeploymentStatusOverview(
                DeploymentStatus(state.status), "CONFIG_UPDATE_COMPLETED", states, state.why_failed
            )
        healthy = all(d.status == "HEALTHY" for d in deployments.values())
        failed = any(d.status == "DEPLOY_FAILED" for d in deployments.values())
        said = ApplicationStatus.RUNNING if healthy else ApplicationStatus.DEPLOYING
        if failed:
            said = ApplicationStatus.DEPLOY_FAILED
        apps[name] = ApplicationStatusOverview(said, "", 0.0, deployments)
        proxies |= {hex_id("node", n): ProxyStatus.HEALTHY for n in served.instance.proxies}
    return ServeStatus(proxies, apps)
