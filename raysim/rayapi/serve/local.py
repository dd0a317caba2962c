"""``serve.run(_local_testing_mode=True)``: an application in the process that asks.

Real counterpart: ``python/ray/serve/_private/local_testing_mode.py`` of ray 2.60: no controller, no
replicas, no HTTP; each deployment is one object, its constructor runs at once, and errors are those
that were raised.

Not modelled: an event loop for each deployment (they share one); a request that is cancelled goes
on.
"""

from __future__ import annotations

import inspect
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import begin_call, end_call, this_core, this_fiber
from raysim.rayapi.exceptions import GetTimeoutError
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serve.configs import deployment_config
from raysim.rayapi.serve.context import SERVING, Serving
from raysim.rayapi.serve.deployment import Application, Deployment
from raysim.rayapi.serve.handle import (
    Asked,
    DeploymentHandle,
    DeploymentResponse,
    DeploymentResponseGenerator,
)
from raysim.rayapi.serve.replica import ProgramReplica


class LocalResponse(DeploymentResponse):
    """``DeploymentResponse`` of a local call."""

    def result(self, timeout_s: float | None = None, **_: Any) -> Any:
        """Wait for it."""
        try:
            return super().result(timeout_s)
        except GetTimeoutError:
            raise TimeoutError("Timed out waiting for result.") from None

    def _stored(self) -> ObjectRef:
        raise RuntimeError(
            "Converting DeploymentResponses to ObjectRefs is not supported in local testing mode."
        )


class LocalReplica(ProgramReplica):
    """The one object of a deployment, and who calls it."""

    is_local = True

    def __init__(
        self, deployed: Deployment, name: str, app_name: str, args: Any, kwargs: Any
    ) -> None:  # fmt: skip
        fiber = this_fiber()
        said = deployed._said  # noqa: SLF001  (its room's)
        super().__init__(
            fiber.process.session, this_core(fiber), deployment_config(name, said, "", app_name),
            f"{name}#0", app_name=app_name, code=b"", user_config=said.get("user_config"),
        )  # fmt: skip
        self.state = fiber.process
        if self.state.loop is None:
            asyncio_loop.start_loop(self.state, "local testing")
        self.target = target = deployed.func_or_class
        if inspect.isclass(target):
            self.target = target.__new__(target)
            self._wait_for(target.__init__, self.target, *args, **kwargs)
        self._reconfigure()

    def response(self, *, stream: bool) -> LocalResponse | DeploymentResponseGenerator:
        """For a call."""
        caller: Any = self
        return DeploymentResponseGenerator(caller) if stream else LocalResponse(caller)

    def send(self, response: Any, asked: Asked, model_id: str) -> None:
        """As ``Caller``."""
        loop = self.state.loop
        loop.call_soon_threadsafe(lambda: loop.create_task(self._run(response, asked, model_id)))

    async def _run(self, response: Any, asked: Asked, model_id: str) -> None:
        SERVING.set(Serving(self, model_id))
        try:
            answer = await self._answer(response, asked)
        except BaseException as error:  # noqa: BLE001  (whatever a program raises)
            answer = error
        fiber = self.state.loop.fiber
        begin_call(fiber)
        end_call(fiber)
        self.process.after(fiber.lead_ns, lambda _: response.settle(answer))

    def _yielded(self, call: Any, asked: Asked, item: Any) -> None:
        del asked
        lead_ns = self.state.loop.fiber.lead_ns
        self.process.after(lead_ns, lambda _: call.has_item(item))


def deploy(app: Application, app_name: str) -> DeploymentHandle:
    """Every deployment of a graph once, callees first; a handle of the ingress."""
    handles: dict[int, DeploymentHandle] = {}
    names: set[str] = set()

    def handle_of(bound: Application) -> DeploymentHandle:
        if id(bound) in handles:
            return handles[id(bound)]
        args, kwargs = placed(bound.args), placed(bound.kwargs)
        name, again = bound.deployment.name, 0
        while name in names:
            again += 1
            name = f"{bound.deployment.name}_{again}"
        names.add(name)
        replica = LocalReplica(bound.deployment, name, app_name, args, kwargs)
        handles[id(bound)] = DeploymentHandle(name, app_name, local=replica)
        return handles[id(bound)]

    def placed(value: Any) -> Any:
        if isinstance(value, Application):
            return handle_of(value)
        if isinstance(value, dict):
            return {key: placed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(placed(item) for item in value)
        return value

    return handle_of(app)
