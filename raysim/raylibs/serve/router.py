"""The router behind a handle: which replica takes a call, and who waits.

Real counterpart: ``_private/router.py`` and ``_private/request_router/`` (ray 2.60):
``PowerOfTwoChoicesRequestRouter`` with its mixins for FIFO order, locality and multiplexed models.
Each router has its own view of queue lengths: a cache it raises when it sends, lowers when a call
ends, corrects by what replicas answer, and stops believing after 10 s; candidates without a
believed length below their limit are probed. Replicas enforce ``max_ongoing_requests``: one that
is full refuses, and the call goes back to its place in the queue. At most two tasks per replica
look for replicas at a time; who finds one serves the oldest call.

A task goes on without giving way while the cache tells it of room, and the cache is raised by
sending, which comes after: where calls wait, the first room that is seen is given to all of them.
All but a few are refused, the router's loop is busy with them, questions about queue lengths
expire meanwhile, and tasks whose call comes late in the queue back off between older ones.

Not modelled: ``choose_replica`` with reserved slots, sessions, custom routers; of the router's own
Python what is not said in ``costs.py`` is part of what a call costs its caller's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from raysim.raylibs.serve.config import DeploymentConfig
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.defaults import RAY_2_60, ServeDefaults
from raysim.raylibs.serve.event_loop import EventLoop, ServeProcess, deliver
from raysim.raylibs.serve.request import Call
from raysim.raylibs.serve.routing import Candidates, Choice
from raysim.units import NS_PER_S, to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.handle_metrics import HandleMetrics
    from raysim.raylibs.serve.replica import Replica


class Router:
    """Of one handle: what it has queued, sent and believes."""

    def __init__(
        self,
        process: ServeProcess,
        config: DeploymentConfig,
        costs: ServeCosts,
        rng: Any,
        *,
        loop: EventLoop,
        handle_id: str,
        prefer_local_node: bool = False,
        defaults: ServeDefaults = RAY_2_60,
    ) -> None:
        self.process = process
        self.config = config
        self.costs = costs
        self.defaults = defaults
        self.loop = loop
        """That of its caller."""
        self.handle_id = handle_id
        self.queued = 0
        """Calls without a replica."""
        self.running: dict[str, int] = {}
        """Sent and not answered, by replica."""
        self.replicas: dict[str, Replica] = {}
        self.assigned = 0
        """Calls that a replica has taken; ``waited_ns`` is how long they looked for it."""
        self.waited_ns = self.longest_wait_ns = self.longest_wait_at_max_ns = 0
        self._at_max_since_ns = -1
        self.metrics: HandleMetrics | None = None
        """Of deployments that scale."""
        self._candidates = Candidates(self, rng, prefer_local_node)
        self._came = 0
        self._waits: dict[int, Call] = {}
        """Calls without a replica, by age."""
        self._to_route: list[int] = []
        self._to_fulfill: list[int] = []
        """Heaps of ages; those that have a replica meanwhile are passed over."""
        self._by_model: dict[str, deque[Call]] = {}
        self._tasks: dict[_RoutingTask, None] = {}
        self._waiting: list[_RoutingTask] = []
        self._believed: dict[str, tuple[int, int]] = {}
        self._in_flight: dict[str, dict[Call, None]] = {}
        self._starting = False
        self._waited_ns = to_ns(costs.waited_s)
        self.probe_ns = to_ns(costs.probe_s)
        self._near_ns = to_ns(costs.transit_s)
        self._far_ns = to_ns(costs.transit_s + costs.cross_node_s)
        self._cache_ns = defaults.queue_len_cache_timeout_s * NS_PER_S

    # ---- what the controller says

    def update_config(self, config: DeploymentConfig) -> None:
        """A new configuration, by long poll."""
        self.config = config

    def update_replicas(self, replicas: Sequence[Replica]) -> None:
        """Those that run now, by long poll."""
        new = [r for r in replicas if r.replica_id not in self.replicas]
        self.replicas = {r.replica_id: r for r in replicas}
        auto = self.config.autoscaling
        if auto is None or len(replicas) < auto.max_replicas:
            self._at_max_since_ns = -1
        elif self._at_max_since_ns < 0:
            self._at_max_since_ns = self.process.now_ns
        self._believed = {k: v for k, v in self._believed.items() if k in self.replicas}
        self.running = {k: n for k, n in self.running.items() if n or k in self.replicas}
        self._candidates.update()
        self._probe(new, 0, None)
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.look()
        self._start_tasks()

    def replica_died(self, replica: Replica) -> None:
        """Calls it had taken fail; calls that had not reached it are routed again."""
        replica_id = replica.replica_id
        self._forget(replica_id)
        for call in list(self._in_flight.get(replica_id, ())):
            if call.accepted:
                self._ended(call)
                call.end("replica_died", self.process.now_ns)
            else:
                self._unsent(call)
                self._again(call)

    def _forget(self, replica_id: str) -> None:
        if self.replicas.pop(replica_id, None) is not None:
            self._believed.pop(replica_id, None)
            self._candidates.update()

    # ---- calls

    def assign(self, call: Call) -> None:
        """Find it a replica, or refuse it if too many wait (``BackPressureError``)."""
        call.created_ns = self.process.now_ns
        limit = self.config.max_queued_requests
        if limit >= 0 and self.queued >= limit:
            call.end("backpressure", call.created_ns)
            return
        self.queued += 1
        if self.metrics is not None:
            if self.metrics.asleep:
                self.metrics.wake()
            if not self.replicas:
                self.metrics.push_now()
        self._came += 1
        call.order = self._came
        self._enqueue(call)
        if call.model_id:
            self._by_model.setdefault(call.model_id, deque()).append(call)
        self._start_tasks()

    def _again(self, call: Call) -> None:
        """It goes back to its place, by age; localities it has tried it does not try again."""
        self.queued += 1
        self._enqueue(call)
        if call.model_id:
            self._by_model.setdefault(call.model_id, deque()).appendleft(call)
        self._start_tasks()

    def _enqueue(self, call: Call) -> None:
        self._waits[call.order] = call
        heappush(self._to_fulfill, call.order)
        heappush(self._to_route, call.order)

    def _start_tasks(self) -> None:
        if self._starting:  # a task that is over has room for the next: the loop below goes on
            return
        self._starting = True
        limit = self.defaults.routing_tasks_per_replica * len(self.replicas)
        while len(self._tasks) < min(self.queued, limit):
            call = self._next_to_route()
            if call is None:
                break
            task = _RoutingTask(self, call)
            self._tasks[task] = None
            task.look()
        self._starting = False

    def _next_to_route(self) -> Call | None:
        """The oldest call nobody looks for."""
        while self._to_route:
            call = self._waits.get(heappop(self._to_route))
            if call is not None:
                return call
        return None

    def choose(self, call: Call) -> Choice:
        """Two candidates, and whether to back off if they do not take it."""
        return self._candidates.choose(call)

    def fulfill(self, found: Replica, by: _RoutingTask) -> None:
        """A task has found a replica: the oldest call of its model takes it, or the oldest.

        Another task that looks for that call is cancelled, and one begins in its place.
        """
        call = self._matching(by.call.model_id) or self._oldest()
        if call is None:
            return
        self.queued -= 1
        del self._waits[call.order]
        call.replica, call.accepted = found, False
        if call.created_ns == self.process.now_ns:  # its caller's loop has paid for it
            self._send(call)
        else:
            self.loop.run(self._waited_ns, self._send, call)
        for task in [t for t in self._tasks if t.call is call and t is not by]:
            task.cancelled = True
            del self._tasks[task]
            self.process.after(0, lambda _: self._start_tasks())

    def _matching(self, model_id: str) -> Call | None:
        calls = self._by_model.get(model_id) if model_id else None
        while calls:
            call = calls.popleft()
            if call.replica is None:
                return call
        return None

    def _oldest(self) -> Call | None:
        while self._to_fulfill:
            call = self._waits.get(heappop(self._to_fulfill))
            if call is not None:
                return call
        return None

    def task_over(self, task: _RoutingTask) -> None:
        """Its call has a replica: it takes the next, unless there are too many tasks."""
        del self._tasks[task]
        self._start_tasks()

    def wait_for_replicas(self, task: _RoutingTask) -> None:
        """There are none."""
        self._waiting.append(task)

    # ---- to a replica and back

    def in_turn(self, fn: Callable[[Any], object], arg: Any = None) -> None:
        """``fn(arg)`` when the loop comes to it."""
        if self.loop.busy_until > self.process.now_ns:
            self.loop.run(0, fn, arg)
        else:
            fn(arg)

    def _send(self, call: Call) -> None:
        replica = call.replica
        assert replica is not None, "sent without a replica"
        replica_id = replica.replica_id
        if replica_id not in self.replicas:  # it died meanwhile
            call.replica = None
            self._again(call)
            return
        call.assigned_ns = self.process.now_ns
        self._believe(replica_id, self._believes(replica_id, 0) + 1)
        self.running[replica_id] = self.running.get(replica_id, 0) + 1
        self._in_flight.setdefault(replica_id, {})[call] = None
        deliver(replica.process, self.transit_ns(replica), replica.receive, call)

    def accepted(self, answer: tuple[Call, int]) -> None:
        """The replica has taken it; how many it has now."""
        call, ongoing = answer
        if call.replica is not None and call.status is None:
            call.accepted = True
            wait_ns = call.assigned_ns - call.created_ns
            self.assigned += 1
            self.waited_ns += wait_ns
            self.longest_wait_ns = max(self.longest_wait_ns, wait_ns)
            if 0 <= self._at_max_since_ns <= call.created_ns:
                self.longest_wait_at_max_ns = max(self.longest_wait_at_max_ns, wait_ns)
            self._believe(call.replica.replica_id, ongoing)

    def refused(self, answer: tuple[Call, int]) -> None:
        """The replica is full, or about to stop."""
        self.loop.run(self._waited_ns, self._refused, answer)

    def _refused(self, answer: tuple[Call, int]) -> None:
        call, ongoing = answer
        replica = call.replica
        if replica is None:  # it died meanwhile, and the call is on its way elsewhere
            return
        self._unsent(call)
        self._believe(replica.replica_id, ongoing)
        self._again(call)

    def answered(self, call: Call) -> None:
        """The call is over: its caller's loop has the answer."""
        if call.status is None and call.replica is not None:
            self._ended(call)
            call.end(call.outcome, self.process.now_ns)

    def _unsent(self, call: Call) -> None:
        self._gone(call)
        call.replica = None

    def _ended(self, call: Call) -> None:
        replica = self._gone(call)
        believed = self._believes(replica, -1)
        if believed >= 0:
            self._believe(replica, max(0, believed - 1))

    def _gone(self, call: Call) -> str:
        assert call.replica is not None, "answered without having been sent"
        replica_id = call.replica.replica_id
        del self._in_flight[replica_id][call]
        self.running[replica_id] -= 1
        return replica_id

    def transit_ns(self, replica: Replica) -> int:
        """One way."""
        far = replica.process.me.node_id != self.process.me.node_id
        return self._far_ns if far else self._near_ns

    # ---- queue lengths

    def _believe(self, replica_id: str, length: int) -> None:
        self._believed[replica_id] = (length, self.process.now_ns)

    def _believes(self, replica_id: str, otherwise: int) -> int:
        believed = self._believed.get(replica_id)
        if believed is None:
            return otherwise
        length, since_ns = believed
        return otherwise if self.process.now_ns - since_ns > self._cache_ns else length

    def select(
        self, candidates: Sequence[Replica], attempt: int, then: Callable[[Replica | None], object]
    ) -> None:
        """The candidate with the shortest queue that has room; None: neither has."""
        limit = self.config.max_ongoing_requests
        unknown, best, shortest = [], None, limit
        for replica in candidates:
            length = self._believes(replica.replica_id, limit)
            if length >= limit:
                unknown.append(replica)
            elif length < shortest:
                best, shortest = replica, length
        if best is None:
            self._probe(unknown, attempt, then)
            return
        if unknown:
            self._probe(unknown, attempt, None)
        then(best)

    def _probe(
        self,
        replicas: Sequence[Replica],
        attempt: int,
        then: Callable[[Replica | None], object] | None,
    ) -> None:
        if replicas:
            _Probe(self, replicas, attempt, then)
        elif then is not None:
            then(None)

    def probed(self, replica_id: str, length: int) -> None:
        """A replica has said how long its queue is."""
        if replica_id in self.replicas:
            self._believe(replica_id, length)


class _RoutingTask:
    """``_fulfill_pending_requests``: looks for a replica on behalf of one call."""

    __slots__ = ("attempt", "backing_off", "backoffs", "call", "cancelled", "router")

    def __init__(self, router: Router, call: Call) -> None:
        self.router = router
        self.call = call
        self.attempt = 0
        self.backoffs = 0
        self.backing_off = False
        self.cancelled = False

    def look(self, _: object = None) -> None:
        """One iteration."""
        router = self.router
        if self.cancelled:
            return
        if self._served():
            router.task_over(self)
            return
        if not router.replicas:
            router.wait_for_replicas(self)
            return
        choice = router.choose(self.call)
        self.backing_off = choice.back_off
        router.select(choice.replicas, self.attempt, self._selected)

    def _selected(self, found: Replica | None) -> None:
        router = self.router
        if self.cancelled:
            return
        if self._served():
            router.task_over(self)
        elif found is not None and found.replica_id in router.replicas:
            router.fulfill(found, self)
            if self._served():
                router.task_over(self)
            else:  # an older call has taken it: Ray's task backs off before it looks again
                router.process.after(self._back_off_ns(), router.in_turn, self.look)
        else:
            self.attempt += 1
            router.process.after(self._back_off_ns(), router.in_turn, self.look)

    def _served(self) -> bool:
        """It has a replica, found by this task or by another."""
        return self.call.replica is not None

    def _back_off_ns(self) -> int:
        """None after a locality, none after the first look; then 25 ms, doubling to 0.5 s."""
        if not self.backing_off:
            return 0
        self.backoffs += 1
        if self.backoffs == 1:
            return 0
        d = self.router.defaults
        delay_s = d.retry_initial_backoff_s * d.retry_backoff_multiplier ** min(
            self.backoffs - 2, 30
        )
        return to_ns(min(delay_s, d.retry_max_backoff_s))


class _Probe:
    """Asks replicas for their queue lengths; those silent at the deadline do not count."""

    __slots__ = ("answers", "over", "replicas", "router", "then")

    def __init__(
        self,
        router: Router,
        replicas: Sequence[Replica],
        attempt: int,
        then: Callable[[Replica | None], object] | None,
    ) -> None:
        self.router = router
        self.replicas = replicas
        self.then = then
        self.answers: dict[str, int] = {}
        self.over = False
        d = router.defaults
        deadline_s = min(d.queue_len_deadline_s * 2 ** min(attempt, 10), d.max_queue_len_deadline_s)
        for replica in replicas:
            arrives = replica.process
            deliver(arrives, router.transit_ns(replica), replica.probe, (self, router))
        if then is not None:
            router.process.after(to_ns(deadline_s), router.in_turn, self.end)

    def answer(self, answer: tuple[Replica, int]) -> None:
        """One has answered."""
        router = self.router
        router.loop.run(router.probe_ns, self._heard, answer)

    def _heard(self, answer: tuple[Replica, int]) -> None:
        replica, length = answer
        self.router.probed(replica.replica_id, length)
        self.answers[replica.replica_id] = length
        if len(self.answers) == len(self.replicas):
            self.router.in_turn(self.end)

    def end(self, _: object = None) -> None:
        """All have, or the deadline is there."""
        if self.over or self.then is None:
            return
        self.over = True
        best, shortest = None, self.router.config.max_ongoing_requests
        for replica in self.replicas:
            length = self.answers.get(replica.replica_id, shortest)
            if length < shortest:
                best, shortest = replica, length
        self.then(best)
