"""HTTP requests of programs: to a proxy and into a replica, with starlette's classes there.

Real counterpart: ``python/ray/serve/_private/http_util.py`` and ``proxy.py`` (ray 2.60). A request
is whole when it is sent. What an application sends with more to follow goes out at once.

Not modelled: websockets; timeouts of clients between parts of a reply.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.serialization import serialize
from raysim.rayapi.serve.handle import CALL, Asked
from raysim.rayapi.serve.serving import LIBRARY, Serve, Served, serve_of
from raysim.rayapi.serve.streams import Head, Reply
from raysim.raycore.tasks import TaskError
from raysim.raylibs.serve.event_loop import deliver
from raysim.raylibs.serve.request import Request
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.serve.replica import ProgramReplica
    from raysim.rayapi.session import Session

LOCAL = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104  (names of this machine)
ID_HEADER = "x-request-id"
MODEL_HEADER = "serve_multiplexed_model_id"
JSON_TYPE, TEXT_TYPE = "application/json", "text/plain; charset=utf-8"
UNAVAILABLE, NOT_FOUND, BAD = 503, 404, 500


Chunk = Callable[[Head, bytes], object]
"""What a replica tells of a response that goes on."""


class Message(NamedTuple):
    """A request as it is sent."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    root_path: str = ""

    async def answer(self, replica: ProgramReplica, chunk: Chunk) -> Reply:
        """Of a replica."""
        return await answer(replica, self, chunk)


def _text(status: int, said: str) -> Reply:
    return Reply(Head(status, (("content-type", TEXT_TYPE),)), said.encode())


# ---- from the program ------------------------------------------------------------------------


def is_ours(url: str) -> bool:
    """Whether a program that asks for this asks the emulated Serve."""
    from raysim.rayapi.fibers import HUB

    fiber = HUB.here()
    if fiber is None or LIBRARY not in fiber.process.session.libraries:
        return False
    parts = urlsplit(url)
    return parts.hostname in LOCAL and parts.port == serve_of(fiber.process.session).port


def message_of(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Message:
    """A client library's request."""
    parts = urlsplit(url)
    lines = {k.lower(): v for k, v in headers.items()} | {"host": parts.netloc}
    return Message(method, unquote(parts.path) or "/", parts.query, tuple(lines.items()), body)


def start_request(message: Message, then: Callable[[Reply], object]) -> Callable[[], object]:
    """Send it; ``then(reply)`` in the simulation, when all of it is there or its first chunk.

    What it returns is called by a client that leaves before.
    """
    session = this_fiber().process.session
    core: Any = this_fiber().process.core
    message, request_id = numbered(message, session)
    found = _route(serve_of(session).apps.values(), message.path)
    if found is None:
        reply = _of_proxy(serve_of(session), message.path).under(ID_HEADER, request_id)
        core.after(0, lambda _: then(reply))
        return lambda: None
    served, prefix = found
    model_id = dict(message.headers).get(MODEL_HEADER, "")
    message = message._replace(root_path=prefix)
    return send(
        served, message, model_id, _reply_of, lambda reply: then(reply.under(ID_HEADER, request_id))
    )


def send(
    served: Served,
    message: Any,
    model_id: str,
    reply_of: Callable[[Request], Reply],
    then: Callable[[Reply], object],
) -> Callable[[], object]:
    """By way of a proxy, to a replica of the ingress, which calls ``message.answer``.

    Parameters
    ----------
    served, message, model_id
        The application, and what it is asked.
    reply_of
        Of a request that has ended.
    then
        Given the reply when all of it is there, or its first chunk.
    """
    core: Any = this_fiber().process.core
    asked = Asked(CALL, serialize(((), {})), (), stream=False, message=message, items=deque())
    streamed: list[Reply] = []

    def came(request: Request) -> None:
        head, chunk = asked.items.popleft()
        if not streamed:
            streamed.append(Reply(head, left=lambda: _cancel(request)))
            then(streamed[0])
        streamed[0].came(chunk)

    def ended(request: Request) -> None:
        served.log.add(request)
        reply = reply_of(request)
        if streamed:
            streamed[0].end(broken=request.status != "ok", with_head=reply.head)
        else:
            then(reply)

    request = Request(
        served.numbered(), core.now_ns, ended, model_id=model_id, asked=asked, on_chunk=came
    )
    proxies = served.instance.proxies
    proxy = proxies.get(core.me.node_id) or next(iter(proxies.values()), None)
    if proxy is None:
        request.end("no_proxy", core.now_ns)
    else:
        transit_ns = to_ns(served.instance.costs.transit_s)
        deliver(proxy.process, transit_ns, proxy.receive, request)
    return lambda: _cancel(request)


def numbered(message: Message, session: Session) -> tuple[Message, str]:
    """With an id, the client's or one that the proxy draws."""
    said = dict(message.headers).get(ID_HEADER)
    if said is not None:
        return message, said
    made = new_id(session)
    return message._replace(headers=(*message.headers, (ID_HEADER, made))), made


def new_id(session: Session) -> str:
    """Of a request."""
    drawn = session.sim.rng("serve/request_ids").bytes(16).hex()
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def _cancel(request: Request) -> None:
    """The client has left: a coroutine that still sends is interrupted."""
    call = request.call
    if call is not None and call.replica is not None:
        code: Any = call.replica.code
        code.cancel(call)


def _route(apps: Any, path: str) -> tuple[Served, str] | None:
    """The application with the longest prefix of the path, and that prefix."""
    best: tuple[Served, str] | None = None
    for served in apps:
        prefix = served.route_prefix
        if prefix is None:
            continue
        root = "" if prefix == "/" else prefix.rstrip("/")
        inside = path == root or path.startswith(f"{root}/")
        if inside and (best is None or len(root) > len(best[1])):
            best = served, root
    return best


def _of_proxy(serve: Serve, path: str) -> Reply:
    """What no application is asked: which there are, whether the proxy is well."""
    if path == "/-/routes":
        apps = serve.apps.items()
        routes = {s.route_prefix: name for name, s in apps if s.route_prefix is not None}
        return _json(routes)
    if path == "/-/healthz":
        return _text(200, "success")
    said = f"Path '{path}' not found. Ping http://.../-/routes for available routes."
    return _text(NOT_FOUND, said)


def _reply_of(request: Request) -> Reply:
    answer = None if request.call is None else request.call.answer
    if request.status == "ok":
        assert isinstance(answer, Reply), "a replica answers HTTP with a reply"
        return answer
    if request.status in ("backpressure", "no_proxy"):
        return _text(UNAVAILABLE, "Request dropped due to backpressure.")
    if isinstance(answer, TaskError):
        return Reply(Head(BAD, ()), b"Internal Server Error")
    return _text(BAD, "The replica died before it answered.")


@program_call
def ask(message: Message, timeout_s: float | None = None) -> Reply:
    """Send it from a thread, and wait for the reply.

    Raises
    ------
    TimeoutError
        Nothing of it has come by then; the client leaves.
    """
    fiber = this_fiber()
    fiber.settle()
    sim, leave, timer = fiber.process.session.sim, [], []

    def start(then: Callable[[Any], object]) -> None:
        leave.append(start_request(message, then))
        if timeout_s is not None:
            timer.append(sim.call_later(to_ns(timeout_s), then, None))

    reply: Reply | None = fiber.block(start)
    if reply is None:
        leave[0]()
        raise TimeoutError("timed out")
    for each in timer:
        sim.cancel(each)
    return reply


async def ask_async(message: Message, timeout_s: float | None = None) -> Reply:
    """The same from an event loop."""
    from raysim.rayapi import asyncio_loop

    leave: list[Callable[[], object]] = []
    coming = asyncio_loop.future_with(lambda then: leave.append(start_request(message, then)))
    try:
        reply: Reply = await asyncio_loop.wait_for(coming, timeout_s)
    except (asyncio_loop.TimeoutError_, asyncio_loop.CancelledError):
        for each in leave:
            each()
        raise
    return reply


# ---- in the replica --------------------------------------------------------------------------


async def answer(replica: ProgramReplica, message: Message, chunk: Chunk) -> Reply:
    """What the user's code makes of a request; ``chunk`` is told of what goes out before."""
    app = getattr(replica.target, "_serve_asgi_app", None)
    if app is not None:
        return await _of_asgi(app, message, chunk)
    method = replica.method(CALL)
    takes = inspect.signature(method).parameters
    given = (_request(message),) if takes else ()
    return await _reply(await replica.call(method, *given), chunk)


def _scope(message: Message) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": message.method, "scheme": "http", "path": message.path,
        "raw_path": message.path.encode(), "query_string": message.query.encode(),
        "root_path": message.root_path, "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 8000),
        "headers": [(k.encode(), v.encode()) for k, v in message.headers],
    }  # fmt: skip


def _receiver(message: Message) -> Any:
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:  # who asks again waits for the client to leave, which it does not
            from raysim.rayapi import asyncio_loop

            await asyncio_loop.new_future()
        given = True
        return {"type": "http.request", "body": message.body, "more_body": False}

    return receive


def _request(message: Message) -> Any:
    from starlette.requests import Request as HttpRequest

    return HttpRequest(_scope(message), _receiver(message))


async def _of_asgi(app: Any, message: Message, chunk: Chunk) -> Reply:
    head, body, goes_on = Head(BAD, ()), b"", False
    replied = False

    async def send(part: dict[str, Any]) -> None:
        nonlocal head, body, goes_on, replied
        replied = True
        if part["type"] == "http.response.start":
            headers = tuple((k.decode(), v.decode()) for k, v in part.get("headers", ()))
            head = Head(part["status"], headers)
        elif part["type"] == "http.response.body":
            body, goes_on = part.get("body", b""), goes_on or part.get("more_body", False)
            if goes_on and body:
                chunk(head, body)

    try:
        await app(_scope(message), _receiver(message), send)
    except Exception:  # starlette raises what its own reply has told the client
        if not replied or goes_on:
            raise
    return Reply(head, body)


async def _reply(value: Any, chunk: Chunk) -> Reply:
    """As Serve turns values into responses: text, bytes, JSON, or what they are."""
    if isinstance(value, bytes):
        return Reply(Head(200, (("content-type", "text/plain"),)), value)
    if isinstance(value, str):
        return _text(200, value)
    if hasattr(value, "raw_headers") and callable(value):  # starlette's Response
        return await _of_asgi(value, Message("GET", "/", "", (), b""), chunk)
    if value is None:  # Serve sends nothing of it
        return Reply(Head(200, (("content-type", "text/plain"),)), b"")
    return _json(value)


def _json(value: Any) -> Reply:
    text = json.dumps(value, default=_plain, separators=(",", ":"))
    return Reply(Head(200, (("content-type", JSON_TYPE),)), text.encode())


def _plain(value: Any) -> Any:
    for convert in ("model_dump", "tolist", "isoformat"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset) or inspect.isgenerator(value):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
