"""``serve.run`` of an application on a cluster, from the driver.

Real counterpart: ``serve.run`` (``api.py``, ``_private/client.py``, ray 2.60): start Serve if it is
not there, deploy, look every tenth of a second whether the application runs.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.scripts import TIMED_OUT, Event, Script, here, now, sleep, wait_for
from raysim.raylibs.actors import ActorClass, ActorHandle
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


def serve_run(
    instance: Instance, *, timeout_s: float, controller_class: ActorClass = CONTROLLER
) -> Script:
    """``running = yield from serve_run(instance, timeout_s=...)``: ``Running``.

    Real ``serve.run`` waits for ever; after ``timeout_s`` the refusal says what is missing.
    """
    process: Any = yield here()
    timeline, began_ns = Timeline(), process.now_ns
    handle = yield from controller_class.remote(instance, timeline)
    yield from handle.ask("deploy_application", instance.app)
    controller: ServeController = yield from handle.ask("itself")
    running = Running(instance, timeline, controller, handle)
    yield from settle(running, began_ns, timeout_s=timeout_s)
    return running


def settle(running: Running, began_ns: int, *, timeout_s: float) -> Script:
    """Look every tenth of a second whether the application is as it should be."""
    settled = Event()
    running.controller.when_settled(settled.set)
    said = yield wait_for(settled, to_ns(timeout_s))
    running.refusal = ""
    if said is TIMED_OUT:
        running.refusal = ", ".join(running.controller.lacking()) or "no proxy has started"
    elif said != "RUNNING":
        running.refusal = said
    poll_ns = to_ns(running.instance.defaults.client_polling_interval_s)
    yield sleep(poll_ns - ((yield now()) - began_ns) % poll_ns)
