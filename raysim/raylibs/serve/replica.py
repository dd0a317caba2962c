"""A replica, as requests see it: its loop, its limit, the user's method.

Real counterpart: ``_private/replica.py`` (ray 2.60). A request costs the replica's loop half of
its hop when it comes and half when it goes; it is one task of that loop, and gives way to others
at every chunk of a stream, made or handed on. The replica refuses beyond ``max_ongoing_requests``
and says either way how many it has. The user's method is a ``UserCode``: numbers (``Work``), an
LLM engine, or, in ``rayapi``, the user's own function.

Not modelled: cancellation when a client disconnects; a user's event loop that is blocked (what
blocks is ``busy_s``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from raysim.raycore.scripts import Script, sleep
from raysim.raylibs.serve.batching import BatchQueue, Models
from raysim.raylibs.serve.config import DeploymentConfig, Work
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.event_loop import EventLoop, Jitter, ServeProcess, Turns, deliver
from raysim.raylibs.serve.request import Call, Status
from raysim.raylibs.serve.router import Router
from raysim.units import to_ns


class UserCode(Protocol):
    """What a replica runs for each request."""

    def construct(self) -> Script:
        """Its constructor; a TaskError if it raises."""

    def python_ns(self) -> int:
        """Of one request, on the replica's loop, before anything else."""

    def start(self, replica: Replica, call: Call, done: Callable[[Call, Status], object]) -> None:
        """Begin; ``done(call, status)`` once, when it has returned or raised."""


class Replica:
    """The data path of one replica."""

    def __init__(
        self,
        process: ServeProcess,
        replica_id: str,
        config: DeploymentConfig,
        costs: ServeCosts,
        jitter: Jitter,
        code: UserCode,
        *,
        is_ingress: bool = False,
    ) -> None:
        self.process = process
        self.replica_id = replica_id
        self.config = config
        self.costs = costs
        self.jitter = jitter
        self.code = code
        self.loop = EventLoop(process)
        self.user_thread = EventLoop(process) if costs.user_thread else self.loop
        """One thing at a time: ``Work.busy_s``."""
        self.handles: dict[str, Router] = {}
        """By deployment."""
        self.ongoing: dict[Call, Turns] = {}
        self.most_ongoing = 0
        self.served = 0
        self.held_ns = 0
        """Of all calls together, from admission to answer."""
        self.quiescing = False
        self.announced_models: dict[str, None] = {}
        """As the controller has last said to routers."""
        self.on_models_changed: Callable[[Replica], object] | None = None
        self.models: Models | None = None
        self._cost_s = costs.ingress_s if is_ingress else costs.replica_s
        self._probe_ns = to_ns(costs.probe_s)
        if config.multiplex is not None and config.multiplex.load_s is not None:
            self.models = Models(process, config.multiplex, self._models_changed)

    # ---- requests

    def receive(self, call: Call) -> None:
        """A call has come."""
        self.loop.run(self.jitter.ns(self._cost_s / 2), self._admit, call)

    def _admit(self, call: Call) -> None:
        router = call.router
        ongoing = len(self.ongoing)
        if self.quiescing or ongoing >= self.config.max_ongoing_requests:
            self._tell(router, router.refused, (call, ongoing))
            return
        self.ongoing[call] = Turns(self.loop)
        call.admitted_ns = self.process.now_ns
        self.most_ongoing = max(self.most_ongoing, ongoing + 1)
        self._tell(router, router.accepted, (call, ongoing + 1))
        if self.models is not None and call.model_id:
            self.models.use(call.model_id, _Begin(self, call))
        else:
            self.begin(call)

    def begin(self, call: Call) -> None:
        """Call the user's method: its Python has the loop to itself."""
        python_ns = self.code.python_ns()
        if python_ns:
            self.ongoing[call].run(python_ns, self._call, call)
        else:
            self._call(call)

    def _call(self, call: Call) -> None:
        call.begun_ns = self.process.now_ns
        self.code.start(self, call, self.done)

    def done(self, call: Call, status: Status) -> None:
        """The user's method has returned or raised."""
        call.outcome = status
        self.ongoing[call].run(self.jitter.ns(self._cost_s / 2), self._leave, call)

    def _leave(self, call: Call) -> None:
        del self.ongoing[call]
        self.served += 1
        self.held_ns += self.process.now_ns - call.admitted_ns
        self._tell(call.router, call.router.answered, call)

    def chunk(self, call: Call, then: Callable[[], object] | None = None) -> None:
        """The user's method has yielded; ``then()`` when the loop is done with it."""
        chunk_s = self.costs.replica_chunk_s
        cost_ns, turn_ns = self.jitter.ns(chunk_s), self.costs.turn_ns(chunk_s)
        self.ongoing[call].run(cost_ns, self._send_chunk, (call, then), turn_ns)

    def _send_chunk(self, chunk: tuple[Call, Callable[[], object] | None]) -> None:
        call, then = chunk
        if call.on_chunk is not None:
            self._tell(call.router, call.on_chunk, call)
        if then is not None:
            then()

    def _tell(self, router: Router, fn: Callable[[Any], object], what: Any) -> None:
        deliver(router.process, router.transit_ns(self), fn, what)

    # ---- others

    def probe(self, probe: tuple[Any, Router]) -> None:
        """A router asks how long the queue is: it hears when the loop comes to it."""
        self.loop.run(self._probe_ns, self._answer_probe, probe)

    def _answer_probe(self, probe: tuple[Any, Router]) -> None:
        asked, router = probe
        self._tell(router, asked.answer, (self, len(self.ongoing)))

    def _models_changed(self) -> None:
        if self.on_models_changed is not None:
            self.on_models_changed(self)


class _Begin:
    """The model is there: go on with the call."""

    __slots__ = ("_call", "_replica")

    def __init__(self, replica: Replica, call: Call) -> None:
        self._replica = replica
        self._call = call

    def __call__(self) -> None:
        self._replica.begin(self._call)


class SimulatedCode:
    """``Work`` as user code: it waits, it is busy, it calls others, it answers."""

    def __init__(
        self,
        work: Work,
        jitter: Jitter,
        fails: Callable[[], float],
        *,
        constructor_s: float = 0.0,
    ) -> None:
        self.work = work
        self._constructor_s = constructor_s
        self._jitter = jitter
        self._fails = fails
        """Uniform draws."""
        self._batches: BatchQueue | None = None

    def batches_of(self, replica: Replica) -> BatchQueue | None:
        """The queue of its batched method, if it is one."""
        if self._batches is None and replica.config.batch is not None:
            run = _BatchRun(self, replica)
            self._batches = BatchQueue(replica.process, replica.config.batch, run.start)
        return self._batches

    def construct(self) -> Script:
        """It takes its time."""
        yield sleep(to_ns(self._constructor_s))

    def start(self, replica: Replica, call: Call, done: Callable[[Call, Status], object]) -> None:
        """Begin."""
        running = _Running(self, replica, call, done)
        batches = self.batches_of(replica)
        if batches is not None:
            call.batched = running
            batches.put(call)
            return
        wait_ns = self._jitter.ns(self.work.wait_s)
        if wait_ns:
            replica.process.after(wait_ns, running.waited)
        else:
            running.waited()

    def python_ns(self) -> int:
        """Of one request."""
        return self._jitter.ns(self.work.python_s)

    def busy_ns(self, batch: int) -> int:
        """Of the method, called with so many requests."""
        work = self.work
        return self._jitter.ns(work.busy_s + work.per_item_busy_s * batch)

    def item_ns(self) -> int:
        """Python of a batched method, of one of its requests."""
        return self._jitter.ns(self.work.per_item_python_s)

    def wait_ns(self) -> int:
        """Of the method, once."""
        return self._jitter.ns(self.work.wait_s)

    def fails(self) -> bool:
        """Whether the method raises this time."""
        return self.work.fails_frac > 0 and self._fails() < self.work.fails_frac


class _Running:
    """One request in the user's method."""

    __slots__ = (
        "call", "chunks_left", "code", "done", "group", "open_calls", "replica", "status", "turns",
    )  # fmt: skip

    def __init__(
        self,
        code: SimulatedCode,
        replica: Replica,
        call: Call,
        done: Callable[[Call, Status], object],
    ) -> None:
        self.code = code
        self.replica = replica
        self.call = call
        self.turns = replica.ongoing[call]
        self.done = done
        self.group = 0
        self.open_calls = 0
        self.chunks_left = code.work.chunks
        self.status: Status = "ok"

    def waited(self, _: object = None) -> None:
        """What overlaps is over; then what does not."""
        busy_ns = self.code.busy_ns(1)
        if busy_ns:
            self.replica.user_thread.run(busy_ns, self.computed)
        else:
            self.computed()

    def computed(self, _: object = None) -> None:
        """The next group of calls to other deployments, or the answer."""
        groups = self.code.work.calls
        if self.status == "ok" and self.code.fails():
            self.status = "user_error"
        if self.status != "ok" or self.group == len(groups):
            self.answer()
            return
        names = groups[self.group]
        self.group += 1
        self.open_calls = len(names)
        for name in names:
            call = Call(
                self.call.request, self.replica.handles[name], self._child_done,
                on_chunk=self._child_chunk if self.call.on_chunk is not None else None,
            )  # fmt: skip
            cost_ns = self.replica.jitter.ns(self.replica.costs.handle_s / 2)
            self.turns.run(cost_ns, call.router.assign, call)

    def _child_done(self, child: Call) -> None:
        cost_ns = self.replica.jitter.ns(self.replica.costs.handle_s / 2)
        self.turns.run(cost_ns, self._child_taken, child)

    def _child_taken(self, child: Call) -> None:
        if child.status != "ok":
            self.status = child.status or "user_error"
        self.open_calls -= 1
        if not self.open_calls:
            self.computed()

    def _child_chunk(self, _child: Call) -> None:
        """A chunk of a deployment behind: taken from the handle, and yielded on."""
        costs = self.replica.costs
        cost_ns = self.replica.jitter.ns(costs.handle_chunk_s)
        self.turns.run(cost_ns, self._forward, None, costs.turn_ns(costs.handle_chunk_s))

    def _forward(self, _: object = None) -> None:
        self.replica.chunk(self.call)

    def answer(self, _: object = None) -> None:
        """In one piece, or chunk by chunk."""
        if self.chunks_left and self.status == "ok":
            self.chunks_left -= 1
            self.replica.chunk(self.call, self._made)
            return
        self.done(self.call, self.status)

    def _made(self) -> None:
        interval_ns = to_ns(self.code.work.chunk_interval_s)
        self.replica.process.after(interval_ns, self.answer)


class _BatchRun:
    """Calls the batched method."""

    __slots__ = ("_code", "_replica")

    def __init__(self, code: SimulatedCode, replica: Replica) -> None:
        self._code = code
        self._replica = replica

    def start(self, batch: Sequence[Call], done: Callable[[], object]) -> None:
        """With these requests."""
        wait_ns = self._code.wait_ns()
        self._replica.process.after(wait_ns, self._waited, (batch, done))

    def _waited(self, run: tuple[Sequence[Call], Callable[[], object]]) -> None:
        replica, requests = self._replica, len(run[0])
        busy_ns = self._code.busy_ns(requests)
        items_ns = [self._code.item_ns() for _ in range(requests)]
        if replica.user_thread is replica.loop or not any(items_ns):
            replica.user_thread.run(busy_ns + sum(items_ns), self._computed, run)
        else:
            replica.user_thread.run(busy_ns, self._items, (items_ns, run))

    def _items(self, what: tuple[list[int], tuple[Sequence[Call], Callable[[], object]]]) -> None:
        """It lets the lock go at each (a copy from the GPU), and has it again a turn later."""
        (*items_ns, last_ns), run = what
        turns = Turns(self._replica.loop)
        for item_ns in items_ns:
            turns.run(item_ns, lambda _: None)
        turns.run(last_ns, self._computed, run)

    def _computed(self, run: tuple[Sequence[Call], Callable[[], object]]) -> None:
        batch, done = run
        done()
        for call in batch:
            running, call.batched = call.batched, None
            running.computed()
