"""A room: one address, one thread of control, typed messages, a service clock.

Real counterpart: a server process with one event loop, as the GCS, the raylet and the core worker
are (``src/ray/common/asio``, ``src/ray/rpc/server_call.h``). A message *arrives* after the
transport's delay, *starts* when the room is free, *costs* ``service_ns[type]``, and then its
handler runs. The wait is one comparison with ``busy_until`` (Lindley's recurrence for a single
server): there is no queue, and a waiting message is one entry on the clock. Answers queue at the
caller in the same way.

A dead room answers with the cause, as data: ``RoomDown``, ``NodeDied``; a caller that waits no
longer gets ``Timeout``. What a room had accepted and what was on its way to it die with it.

Not modelled: more than one thread per room, preemption, back-pressure on connections. Timers
(``after``) run at their time even if the room is busy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from raysim.errors import InvariantViolation
from raysim.kernel.clock import Handle
from raysim.kernel.simulation import Simulation

Cost = int | Callable[[Any], int]
"""Nanoseconds a message keeps its room busy, or a function of the message that says so."""

_WORD = re.compile(r"[A-Z]+s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


class Cores(Protocol):
    """The cores of a machine for which threads contend."""

    @property
    def alone(self) -> float:
        """Threads that have a core each."""

    def takes(self, thread: object, start_ns: int, work_ns: int) -> int:
        """Nanoseconds that ``work_ns`` of work takes a thread that begins at ``start_ns``."""

    def slice_ns(self, thread: object, at_ns: int) -> int:
        """How long a thread then goes on although others wait for its core; 0: it does not."""


class Message(Protocol):
    """What rooms send: frozen, named as Ray's RPC, and it knows its size."""

    @property
    def size_bytes(self) -> float:
        """Bytes on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomDown:
    """The process is gone; its node is not, so callers learn at once."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDied:
    """The node is gone, with every room on it."""

    address: str
    node: str
    reason: str = "node died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """No answer within the time the caller gave."""

    address: str
    after_ns: int


Failure = RoomDown | NodeDied | Timeout
"""Why there is no answer; ``isinstance(answer, Failure)`` tells."""


def handler_name(message_type: type) -> str:
    """``on_pin_object_ids`` for ``PinObjectIDs``."""
    return "on_" + "_".join(_WORD.findall(message_type.__name__)).lower()


def _addressed(fn: Callable[[Any], None], address: str) -> Callable[[Any], None]:
    """``fn``, entered into the event log under the room's address."""
    entry = partial(fn)
    entry.__qualname__ = address  # type: ignore[attr-defined]
    return entry


class Reply:
    """The way back to whoever called: ``reply(value)``, now or later, once.

    Of a one-way message it goes nowhere, so that a handler need not know which it got. Made by
    ``one_way`` and, for a call, by ``Component.call``: without an ``__init__`` it takes half the
    time, and there are two of them for every task.
    """

    __slots__ = (
        "caller", "caller_epoch", "epoch", "message", "room", "start_ns", "then", "timer", "value",
    )  # fmt: skip

    caller: Component | None
    caller_epoch: int
    epoch: int
    message: Any
    room: Component
    start_ns: int
    then: Callable[[Any], object] | None
    timer: Handle | None
    value: Any

    def __call__(self, value: Any = None, size_bytes: float | None = None) -> None:
        """Answer with ``value``, which weighs ``size_bytes``; if not given, ``value.size_bytes``.

        Raises
        ------
        InvariantViolation
            The call was answered before.
        """
        room, caller = self.room, self.caller
        if self.epoch != room.epoch:  # the room died since, and its callers were told
            return
        if caller is None:
            return
        if room.unanswered.pop(self, self) is self:
            raise InvariantViolation(f"{room.address} answered {self.message} twice")
        self.value = value
        room.sim.transport.deliver(
            room.end,
            caller.end,
            getattr(value, "size_bytes", 0) if size_bytes is None else size_bytes,
            caller.takes_answer,
            self,
            room.lead_ns,
        )

    @property
    def answered(self) -> bool:
        """Whether nobody waits for it any more."""
        return self not in self.room.unanswered


def one_way(room: Component, message: Any) -> Reply:
    """``message`` on its way to ``room``; nobody waits for an answer."""
    call = Reply()
    call.room = room
    call.epoch = room.epoch
    call.message = message
    call.caller = None
    return call


class Component:
    """Base of every room; subclasses add ``on_<message>(self, m, reply)`` handlers.

    Parameters
    ----------
    sim
        The run it belongs to; ``sim.add(room)`` gives it its address and starts it.
    address
        Unique, outside in: ``"node-3/raylet"``.
    service_ns
        Cost per message type, over those of the class; types not listed cost nothing.
    """

    __slots__ = (
        "_accepts", "_ahead", "_cause", "_clock", "_fixed_costs", "_log_times",
        "_log_whats", "_records", "_resume", "_rooms", "_serve", "_silent", "address",
        "busy_until", "cores", "cost_ns", "end", "epoch", "lead_ns", "lost", "sim", "state",
        "takes_answer", "takes_message", "track", "unanswered",
    )  # fmt: skip

    service_ns: ClassVar[Mapping[type, Cost]] = {}
    """Of the class; a room's own, over these, are its ``cost_ns``."""
    runs_ahead: ClassVar[bool] = False
    _handlers: ClassVar[dict[type, Callable[..., None]]] = {}

    def __init_subclass__(cls) -> None:
        """Start an empty table of message type to handler, filled as types are first seen."""
        cls._handlers = {}

    def __init__(
        self, sim: Simulation, address: str, *, service_ns: Mapping[type, Cost] | None = None
    ) -> None:
        self.sim = sim
        self.address = address
        self.end: Any = address
        """Where that is, for the transport that carries its messages."""
        self.track = tuple(address.split("/"))
        self.cost_ns = {**self.service_ns, **(service_ns or {})}
        self.state: Literal["new", "up", "stopped", "crashed"] = "new"
        self.epoch = 0
        """Grows with every crash and every start after one: what began in an earlier epoch, or
        between the two, no longer reaches the room."""
        self._accepts = -1
        """The epoch, while it is up; what is meant for another life of the room is refused."""
        self.busy_until = 0
        self.lead_ns = 0
        """How far ahead of the clock it is, while it handles a message ahead."""
        self.cores: Cores | None = None
        """Of its machine, where they are few; None: there is a core for its thread. From before
        its start."""
        self._fixed_costs = True
        """Each type of message costs what the table says, whenever it comes."""
        self.unanswered: dict[Reply, None] = {}
        """Calls accepted and not answered yet, oldest first."""
        self._cause: RoomDown | NodeDied = RoomDown(address=address, reason="never started")
        self._silent = False
        self.lost: list[Reply] | None = None
        """Calls that a silent death has left without an answer, if its callers are to get one when
        silence breaks: their packets then meet a closed port. None: they never hear of it."""
        self._clock = sim.clock
        self._rooms = sim.components
        self._ahead = self.runs_ahead
        self._records = sim.recorder.enabled
        self._log_times, self._log_whats = sim.log.times, sim.log.whats
        self._serve = _addressed(self._handle, address)
        self._resume = _addressed(self._continue, address)
        self.takes_message, self.takes_answer = self.message_arrives, self.answer_arrives
        """Bound once, since every message and answer is on its way to one of them."""

    # Life

    def start(self) -> None:
        """Accept messages from now on."""
        assert self.state != "up", f"{self.address} is up already"
        if self.state == "crashed":
            self.epoch += 1
        self.state = "up"
        self._accepts = self.epoch
        self._silent = False
        self._fixed_costs = self.cores is None and not any(map(callable, self.cost_ns.values()))
        self.busy_until = self._clock.now
        self.started()

    def restart(self) -> None:
        """Start again after a stop or crash, or crash first; ``started`` resets what it must."""
        if self.state == "up":
            self.crash(reason="restarted")
        self.start()

    def stop(self, reason: str = "stopped") -> None:
        """Accept no more messages; finish what was accepted."""
        assert self.state == "up", f"{self.address} is {self.state}"
        self.state = "stopped"
        self._accepts = -1
        self._cause = RoomDown(address=self.address, reason=reason)
        self.stopped(self._cause)

    def crash(
        self, cause: NodeDied | None = None, *, reason: str = "crashed", silent: bool = False
    ) -> None:
        """Die at once: every caller waiting gets the cause, whatever was queued is lost.

        ``silent``: nobody is told, as when a node loses power; only timeouts and health checks
        notice. A crash of what has crashed before does nothing.
        """
        if self.state == "crashed":
            return
        self.state = "crashed"
        self._accepts = -1
        self.epoch += 1
        self._cause = cause or RoomDown(address=self.address, reason=reason)
        self._silent = silent
        waiting, self.unanswered = self.unanswered, {}
        for call in waiting:
            self._refuse(call)
        self.stopped(self._cause)

    def break_silence(self) -> None:
        """After a silent crash: from now on callers are refused, as by a machine that is back."""
        self._silent = False
        for call in self.lost or ():
            self._refuse(call)
        if self.lost is not None:
            self.lost = []

    def started(self) -> None:
        """Hook: called when the room starts and restarts; set up the state it starts with."""

    def stopped(self, cause: RoomDown | NodeDied) -> None:
        """Hook: called when the room stops or crashes; let go of what it held elsewhere."""

    # Out

    def send(self, address: str, message: Message) -> None:
        """Send one way; nothing comes back, not even a failure.

        Raises
        ------
        KeyError
            No component was ever added at that address.
        """
        if self.state != "crashed":
            room = self._rooms[address]
            self.sim.transport.deliver(
                self.end, room.end, message.size_bytes, room.takes_message,
                one_way(room, message), self.lead_ns,
            )  # fmt: skip

    def call(
        self,
        address: str,
        message: Message,
        then: Callable[[Any], object],
        *,
        timeout_ns: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Send and have ``then(answer)`` called once, with the answer or a ``Failure``.

        ``then`` runs in this room, after whatever it is busy with; it is not called if this room
        dies first. A script waits with ``then=event.succeed``. ``epoch``: the life of the other
        room that is meant; one that has died and started since refuses.

        Raises
        ------
        KeyError
            No component was ever added at that address.
        """
        if self.state == "crashed":
            return
        room = self._rooms[address]
        call = Reply()
        call.room = room
        call.epoch = room.epoch if epoch is None else epoch
        call.message = message
        call.caller = self
        call.caller_epoch = self.epoch
        call.then = then
        call.timer = None
        if timeout_ns is not None:
            call.timer = self.sim.call_later(
                self.lead_ns + timeout_ns, self._give_up, (call, timeout_ns)
            )
        self.sim.transport.deliver(
            self.end, room.end, message.size_bytes, room.takes_message, call, self.lead_ns
        )

    def after(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Handle:
        """Call ``fn(arg)`` later, unless this room dies first; ``sim.cancel`` cancels it."""
        return self.sim.call_later(self.lead_ns + delay_ns, self._timer, (self.epoch, fn, arg))

    @property
    def now_ns(self) -> int:
        """The clock's time, or the instant in whose name a message is handled ahead of it."""
        return self._clock.now + self.lead_ns

    # In

    def message_arrives(self, call: Reply) -> None:
        """A message has come off the wire; for transports only."""
        if call.epoch != self._accepts:
            self._refuse(call)
            return
        if call.caller is not None:
            self.unanswered[call] = None
        message = call.message
        if not self._ahead:
            self._queue(message, self._serve, call)
            return
        kind = message.__class__
        handler = self._handlers.get(kind) or self._find(kind)
        now_ns = self._clock.now
        start_ns = self.busy_until
        if start_ns < now_ns:
            start_ns = now_ns
        cost = self.cost_ns.get(kind, 0) if self._fixed_costs else self._takes(start_ns, message)
        self.busy_until = end_ns = start_ns + cost  # type: ignore[operator]
        self.lead_ns = end_ns - now_ns
        if self._records:
            self._record(start_ns, message)
        self._log_whats[-1] = handler  # in place of the entry that brought it: one event
        handler(self, message, call)
        self.lead_ns = 0

    def answer_arrives(self, call: Reply) -> None:
        """An answer has come off the wire; for transports only."""
        then = call.then
        if call.caller_epoch != self.epoch or then is None:
            return
        if call.timer is not None:
            self.sim.cancel(call.timer)
        value = call.value
        if not self._ahead:
            self._queue(value, self._resume, call)
            return
        now_ns = self._clock.now  # as in message_arrives
        start_ns = self.busy_until
        if start_ns < now_ns:
            start_ns = now_ns
        kind = value.__class__
        cost = self.cost_ns.get(kind, 0) if self._fixed_costs else self._takes(start_ns, value)
        self.busy_until = end_ns = start_ns + cost  # type: ignore[operator]
        self.lead_ns = end_ns - now_ns
        if self._records:
            self._record(start_ns, value)
        call.then = None
        self._log_whats[-1] = then
        then(value)
        self.lead_ns = 0

    def _takes(self, start_ns: int, message: Any) -> int:
        """What it costs, on the machine's cores if they are few."""
        cost = self.cost_ns.get(message.__class__, 0)
        cost_ns = cost if isinstance(cost, int) else cost(message)
        if cost_ns and self.cores is not None:
            cost_ns = self.cores.takes(self, start_ns, cost_ns)
        return cost_ns

    def _queue(self, message: Any, fn: Callable[[Any], None], call: Reply) -> None:
        """Run ``fn(call)`` when the room is free and has served ``message``."""
        now_ns = self._clock.now
        cost_ns = self._takes(max(now_ns, self.busy_until), message)
        if self.busy_until >= now_ns:  # at busy_until itself the one before may still be due
            call.start_ns = self.busy_until
            self.busy_until += cost_ns
        elif cost_ns:
            call.start_ns = now_ns
            self.busy_until = now_ns + cost_ns
        else:
            call.start_ns = now_ns
            fn(call)
            return
        self._clock.call_later(self.busy_until - now_ns, fn, call)

    def _handle(self, call: Reply) -> None:
        if call.epoch != self.epoch:  # died while it waited; the caller was told
            return
        message = call.message
        if self._records:
            self._record(call.start_ns, message)
        handler = self._handlers.get(message.__class__) or self._find(message.__class__)
        self._log_times.append(self._clock.now)
        self._log_whats.append(handler)
        handler(self, message, call)

    def _continue(self, call: Reply) -> None:
        then = call.then
        if call.caller_epoch == self.epoch and then is not None:
            if self._records:
                self._record(call.start_ns, call.value)
            self._log_times.append(self._clock.now)
            self._log_whats.append(then)
            call.then = None
            then(call.value)

    def _record(self, start_ns: int, message: Any) -> None:
        """Show the service of ``message``, which ends now, if it took any time."""
        now_ns = self._clock.now + self.lead_ns
        if start_ns < now_ns:
            name = message.__class__.__name__
            self.sim.recorder.span(self.track, name, "message", start_ns, now_ns)

    def _find(self, message_type: type) -> Callable[..., None]:
        """The handler for a type seen for the first time."""
        name = handler_name(message_type)
        handler = getattr(type(self), name, None)
        if handler is None:
            raise TypeError(
                f"{type(self).__name__} at {self.address} got {message_type.__name__}"
                f" and has no {name}"
            )
        self._handlers[message_type] = handler
        return handler  # type: ignore[no-any-return]

    def _refuse(self, call: Reply) -> None:
        """Answer with the cause of death."""
        caller = call.caller
        if caller is None or self._silent:
            if self._silent and self.lost is not None:
                self.lost.append(call)
            return
        call.value = self._cause
        self.sim.transport.deliver(self.end, caller.end, 0, caller.takes_answer, call)

    def _give_up(self, call_and_ns: tuple[Reply, int]) -> None:
        call, after_ns = call_and_ns
        if call.caller_epoch == self.epoch and call.then is not None:
            then, call.then = call.then, None
            then(Timeout(address=call.room.address, after_ns=after_ns))

    def _timer(self, timer: tuple[int, Callable[[Any], object], Any]) -> None:
        epoch, fn, arg = timer
        if epoch == self.epoch:
            clock = self._clock  # its ``note``, inlined
            clock.log.times.append(clock.now)
            clock.log.whats.append(fn if hasattr(fn, "__qualname__") else fn.__class__)
            fn(arg)
