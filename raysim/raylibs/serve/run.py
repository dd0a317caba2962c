"""``serve.run`` of an application on a cluster, from the driver.

Real counterpart: ``serve.run`` (``api.py``, ``_private/client.py``, ray 2.60): start Serve if it is
not there, deploy, look every tenth of a second whether the controller has taken the application
up, then every second whether it runs.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.scripts import TIMED_OUT, Event, Script, now, sleep, wait_for
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.serve.config import ApplicationConfig
from raysim.raylibs.serve.controller import CONTROLLER, ServeController
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.timeline import Timeline
from raysim.units import to_ns


class Running:
    """An application that was deployed.

    ``refusal`` says why it does not run; empty if it does.
    """

    def __init__(
        self,
        instance: Instance,
        timeline: Timeline,
        controller: ServeController,
        handle: ActorHandle,
    ) -> None:
        self.instance = instance
        self.timeline = timeline
        self.controller = controller
        self.handle = handle
        """Of the controller's actor."""
        self.refusal = ""

    def ask(self, method: str, *args: Any) -> Script:
        """Call the controller from the driver."""
        return self.handle.ask("apply", self.controller, method, *args)


def serve_run(
    instance: Instance,
    *,
    timeout_s: float,
    beside: Running | None = None,
) -> Script:
    """``running = yield from serve_run(instance, timeout_s=...)``: ``Running``.

    Real ``serve.run`` waits for ever; after ``timeout_s`` the refusal says what is missing. An
    application ``beside`` another is under the same controller.
    """
    timeline = Timeline()
    if beside is None:
        handle = yield from CONTROLLER.remote(instance, timeline)
    else:
        handle = beside.handle
    controller: ServeController = yield from handle.ask("beside", instance, timeline)
    running = Running(instance, timeline, controller, handle)
    yield from deploy(running, instance.app, timeout_s=timeout_s)
    return running


def deploy(running: Running, app: ApplicationConfig, *, timeout_s: float) -> Script:
    """Start the application, or update it, and wait for it (``client.py``)."""
    began_ns = yield now()
    yield from running.ask("deploy_application", app)
    creation_s = running.instance.defaults.client_creation_interval_s
    yield from _until_next_look(began_ns, creation_s)
    yield from settle(running, timeout_s=timeout_s)


def settle(running: Running, *, timeout_s: float) -> Script:
    """Look every second whether the application is as it should be; then wait for a proxy."""
    began_ns = yield now()
    timeout_ns = to_ns(timeout_s)
    settled, proxied = Event(), Event()
    running.controller.when_settled(settled.set)
    running.controller.when_proxied(proxied.set)
    said = yield wait_for(settled, timeout_ns)
    running.refusal = ""
    if said is TIMED_OUT:
        lacking = running.controller.lacking()
        running.refusal = ", ".join(lacking) or "it is still being updated"
    elif said != "RUNNING":
        running.refusal = said
    yield from _until_next_look(began_ns, running.instance.defaults.client_polling_interval_s)
    if not running.refusal and (yield wait_for(proxied, timeout_ns)) is TIMED_OUT:
        running.refusal = "no proxy has started"


def _until_next_look(began_ns: int, every_s: float) -> Script:
    """``while not there: time.sleep(every_s)``, which has looked first at ``began_ns``."""
    every_ns = to_ns(every_s)
    yield sleep(-((yield now()) - began_ns) % every_ns)
