"""``DeploymentHandle`` and its responses: a call from a program to a deployment.

Real counterpart: ``python/ray/serve/handle.py`` (ray 2.60). Every process that uses a handle has a
router of its own for it, made at the first call. A response given as an argument is waited for
before the call is sent.

Not modelled: broadcasts, sessions, choosing a replica. A response becomes an object when it is
there, put by its caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.exceptions import ActorDiedError, GetTimeoutError
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serialization import Raised, deserialize, serialize
from raysim.rayapi.serve.context import SERVING
from raysim.rayapi.serve.exceptions import BackPressureError, RequestCancelledError
from raysim.rayapi.submission import put_payload
from raysim.rayapi.unsupported import check_names, getattr_of
from raysim.raycore.tasks import Payload, TaskError

if TYPE_CHECKING:
    from raysim.rayapi.serve.local import LocalReplica
    from raysim.rayapi.serve.serving import Caller
    from raysim.raylibs.serve.request import Call

CALL = "__call__"
_QUIET = ("_prefer_local_routing", "_by_reference")
_REFUSED = ("session_id", "request_serialization", "response_serialization")
"""Other options of handles: those without effect, and those that are not emulated."""


class Options(NamedTuple):
    """``handle.options(...)``."""

    method_name: str = CALL
    multiplexed_model_id: str = ""
    stream: bool = False


class Asked(NamedTuple):
    """What a replica's method is called with; values of responses stand for themselves."""

    method: str
    arguments: Payload
    """(args, kwargs), with a ``Slot`` for each response among them."""
    values: tuple[Any, ...]
    stream: bool
    message: Any = None
    """Of a request that came to a proxy (``http.Message``, ``rpc.Rpc``)."""
    items: Any = None
    """Of a stream: what has been yielded and has not arrived (a deque)."""


class Slot(NamedTuple):
    """The value of a response goes here."""

    number: int


class DeploymentHandle:
    """Calls a deployment's replicas."""

    def __init__(
        self, deployment_name: str, app_name: str, options: Options | None = None, *,
        local: LocalReplica | None = None,
    ) -> None:  # fmt: skip
        self.deployment_name = deployment_name
        self.app_name = app_name
        self._options = options or Options()
        self._local = local
        """What it calls in this process, where an application is tested locally."""

    @property
    def deployment_id(self) -> str:
        """Application and deployment."""
        return f"{self.app_name}#{self.deployment_name}"

    def options(
        self,
        *,
        method_name: str | None = None,
        multiplexed_model_id: str | None = None,
        stream: bool | None = None,
        **others: Any,
    ) -> DeploymentHandle:
        """The same deployment, called otherwise."""
        check_names("DeploymentHandle.options", others, _QUIET, _REFUSED)
        now = self._options
        changed = Options(
            now.method_name if method_name is None else method_name,
            now.multiplexed_model_id if multiplexed_model_id is None else multiplexed_model_id,
            now.stream if stream is None else stream,
        )
        return DeploymentHandle(self.deployment_name, self.app_name, changed, local=self._local)

    def __getattr__(self, name: str) -> DeploymentHandle:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.options(method_name=name)

    @program_call
    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call; a ``DeploymentResponse``, or a generator of its items."""
        responses: list[DeploymentResponse] = []

        def placed(value: Any) -> Any:
            if isinstance(value, DeploymentResponseGenerator):
                raise RuntimeError(
                    "Streaming deployment handle results cannot be passed to downstream handle "
                    "calls."
                )
            if not isinstance(value, DeploymentResponse):
                return value
            responses.append(value)
            return Slot(len(responses) - 1)

        given = [placed(a) for a in args], {k: placed(v) for k, v in kwargs.items()}
        options = self._options
        response = self._response()
        serving = SERVING.get()
        if serving is not None:
            serving.made(response)
        sending = _Sending(response, options, serialize(given, hold_refs=True), responses)
        fiber = this_fiber()
        assert fiber.process.core is not None, "a caller of a deployment has joined the cluster"
        fiber.process.core.after(fiber.lead_ns, sending.go_on)
        return response

    def _response(self) -> _Response:
        if self._local is not None:
            return self._local.response(stream=self._options.stream)
        from raysim.rayapi.serve.serving import caller_of  # it imports what imports this

        kind = DeploymentResponseGenerator if self._options.stream else DeploymentResponse
        return kind(caller_of(self.app_name, self.deployment_name))

    def __repr__(self) -> str:
        return f"DeploymentHandle(deployment='{self.deployment_name}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return DeploymentHandle, (self.deployment_name, self.app_name, self._options)


class _Sending:
    """A call whose arguments are not all there yet."""

    def __init__(
        self,
        response: _Response,
        options: Options,
        arguments: Payload,
        responses: list[DeploymentResponse],
    ) -> None:
        self._response = response
        self._options = options
        self._arguments = arguments
        self._responses = responses

    def go_on(self, _: object = None) -> None:
        """Send it, once every response among its arguments is there."""
        for asked in self._responses:
            if not asked.over:
                asked.when_over(self.go_on)
                return
        answers = tuple(r.answer for r in self._responses)
        failed = next((a for a in answers if isinstance(a, TaskError | BaseException)), None)
        if failed is not None:
            self._response.settle(failed)
            return
        options = self._options
        items: deque[Payload] = deque()
        asked_for = Asked(
            options.method_name, self._arguments, answers, options.stream, items=items
        )
        self._response.caller.send(self._response, asked_for, options.multiplexed_model_id)


class _Response:
    """What is common to both kinds: an answer that comes, and who waits for it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.over = False
        self.answer: Any = None
        """A payload, or what went wrong."""
        self.call: Call | None = None
        self._cancelled = False
        self._waiting: list[Callable[[], object]] = []

    def when_over(self, then: Callable[[], object]) -> None:
        """``then()`` when the answer, or the next item, is there."""
        self._waiting.append(then)

    def settle(self, answer: Any) -> None:
        """It is there; whoever waits goes on."""
        if self.over:
            return
        self.over, self.answer = True, answer
        self.wake()

    def wake(self) -> None:
        """Whoever waits goes on."""
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def ended(self, call: Call) -> None:
        """The call is over, and the caller's loop has its answer."""
        if call.status == "backpressure":
            router = call.router
            self.settle(BackPressureError(router.queued, router.config.max_queued_requests))
        elif call.status == "replica_died":
            self.settle(ActorDiedError())
        else:
            self.settle(call.answer)

    @property
    def request_id(self) -> str:
        """Of the call."""
        number = -1 if self.call is None else self.call.request.number
        return f"{number:032x}"

    def cancel(self) -> None:
        """As well as it can be: the caller gives up, and a coroutine that runs is interrupted."""
        if self._cancelled or self.over:
            return
        self._cancelled = True
        if self.call is not None and self.call.replica is not None:
            code: Any = self.call.replica.code
            code.cancel(self.call)
        self.settle(RequestCancelledError(self.request_id))

    def cancelled(self) -> bool:
        """Whether ``cancel`` has been called in time."""
        return self._cancelled

    def _block(self, timeout_s: float | None) -> None:
        """Wait in a thread.

        Raises
        ------
        RuntimeError
            In an event loop.
        GetTimeoutError
            Nothing has come by then.
        """
        fiber = this_fiber()
        if fiber.loop is not None:
            raise RuntimeError(
                "Sync methods should not be called from within an `asyncio` event loop. Use "
                "`await response` instead."
            )
        if timeout_s is not None and timeout_s <= 0:  # it has not even been sent
            raise TimeoutError("Timed out resolving to ObjectRef.")
        fiber.settle()
        timer: list[Any] = []

        def start(then: Callable[[Any], object]) -> None:
            self.when_over(lambda: then(True))
            if timeout_s is not None:
                sim = fiber.process.session.sim
                timer.append(sim.call_later(round(timeout_s * 1e9), then, False))

        if not fiber.block(start):
            raise GetTimeoutError("Get timed out: some object(s) not ready.")
        if timer:
            fiber.process.session.sim.cancel(timer[0])

    async def _wait(self) -> None:
        """Wait in an event loop."""
        await asyncio_loop.future_with(lambda then: self.when_over(lambda: then(None)))


def _value(answer: Any) -> Any:
    if isinstance(answer, TaskError):
        raise_error(exception_of(answer, ""))
    if isinstance(answer, BaseException):
        raise answer
    return deserialize(answer)


class DeploymentResponse(_Response):
    """The answer of one call."""

    @program_call
    def result(self, timeout_s: float | None = None, **_: Any) -> Any:
        """Wait for it.

        Raises
        ------
        GetTimeoutError
            It has not come by then.
        RayTaskError
            The method raised; also an instance of what it raised.
        """
        if not self.over:
            self._block(timeout_s)
        return _value(self.answer)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.over:
            yield from self._wait().__await__()
        return _value(self.answer)

    async def _to_object_ref(self) -> ObjectRef:
        """Of its value, or of what was raised, once it is there."""
        if not self.over:
            await self._wait()
        return self._stored()

    @program_call
    def _to_object_ref_sync(self, **_: Any) -> ObjectRef:
        """The same, waited for in a thread."""
        if not self.over:
            self._block(None)
        return self._stored()

    def _stored(self) -> ObjectRef:
        if isinstance(self.answer, BaseException):
            raise self.answer
        raised = isinstance(self.answer, TaskError)
        payload = serialize(Raised(self.answer)) if raised else self.answer
        return put_payload(this_fiber(), payload)

    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError(
            "`DeploymentResponse` is not serializable. If you are passing the `DeploymentResponse` "
            "in a nested object (e.g. a list or dictionary) to a downstream deployment handle "
            "call, that is no longer supported. Please only pass `DeploymentResponse` objects as "
            "top-level arguments."
        )


class DeploymentResponseGenerator(_Response):
    """The items of one call, as they come."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.items: deque[Payload] = deque()

    def has_item(self, item: Payload) -> None:
        """One more has come."""
        self.items.append(item)
        self.wake()

    def __iter__(self) -> Iterator[Any]:
        return self

    @program_call
    def __next__(self) -> Any:
        while not self.items and not self.over:
            self._block(None)
        if self.items:
            return deserialize(self.items.popleft())
        _value(self.answer)
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self.items and not self.over:
            await self._wait()
        if self.items:
            return deserialize(self.items.popleft())
        _value(self.answer)
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Any]:
        raise TypeError(
            "`DeploymentResponseGenerator` cannot be awaited directly. Use `async for` or `await "
            "response.__anext__() instead`."
        )

    def result(self, **_: Any) -> Any:
        """Ray has none."""
        raise TypeError(
            "`DeploymentResponseGenerator` doesn't support `.result()`. Use iteration instead: "
            "`for item in response` (outside deployments) or `async for item in response` (inside "
            "deployments)."
        )


for _kind in (DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator):
    _kind.__module__ = "ray.serve.handle"


__getattr__ = getattr_of("ray.serve.handle")
