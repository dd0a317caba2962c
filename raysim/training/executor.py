"""Play the programs of all simulated ranks on virtual time.

Every rank has a host thread that issues operations in order and streams that run them in order. An
operation starts when the host has issued it, its stream is free and what it waits for has ended.
Within one rank all this is arithmetic, so it is computed as soon as it is known, ahead of the
clock; only where ranks meet (collectives, sends, shared links) does an event happen on the kernel.
Such an event never lies in the past, because everything computed from it starts at or after it.

Real counterparts: the CUDA stream model and NCCL's rendezvous. Not modelled: limits of the launch
queue, streaming multiprocessors taken from compute by NCCL kernels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from raysim.errors import InvariantViolation
from raysim.hardware.link_numbers import Ways
from raysim.hardware.maxmin import Loads
from raysim.hardware.network import Network
from raysim.kernel.progress import Moment
from raysim.kernel.simulation import Simulation
from raysim.training.communicators import Communicators
from raysim.training.on_links import communicators_alone, loads_of
from raysim.training.program import COMPUTE, Kind, Op, Program
from raysim.units import to_ns

UNKNOWN = -1
BY_HOST = -1
"""In ``cause``: the host issued it last."""


class Timeline:
    """When each operation of one rank ran; parallel to ``program.ops``."""

    __slots__ = ("blocked_by", "cause", "end_ns", "met_ns", "program", "start_ns")

    def __init__(self, program: Program) -> None:
        n = len(program.ops)
        self.program = program
        self.start_ns = [UNKNOWN] * n
        self.end_ns = [UNKNOWN] * n
        self.met_ns = [UNKNOWN] * n
        """When the last peer of a communication arrived; the start for everything else."""
        self.cause = [BY_HOST] * n
        """Index of the operation whose end let this one start, or ``BY_HOST``."""
        self.blocked_by = [BY_HOST] * n
        """Index of the synchronisation that last held the host up before it issued this."""

    def backward_end_ns(self, count: int) -> int:
        """When the ``count``-th backward pass had ended, its tail on side streams excepted."""
        stop = self.program.backward_ends[count - 1]
        ops = self.program.ops
        return next(self.end_ns[i] for i in range(stop - 1, -1, -1) if ops[i].stream == COMPUTE)

    def step_window(self, step: int) -> tuple[int, int]:
        """When everything before an optimizer step, and the step itself, had ended."""
        ends = self.program.step_ends
        before = ends[step - 1] if step else 0
        return max(self.end_ns[:before], default=0), max(self.end_ns[: ends[step]])


class Meeting:
    """One collective, or one send with its receive, waiting for its participants."""

    __slots__ = ("arrivals", "expected", "ready_ns")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.ready_ns = 0
        self.arrivals: list[tuple[RankPlayer, int]] = []


class RankPlayer:
    """Plays one program.

    What an operation waits for stands before it in the program, so one pass in program order finds
    everything that can be known: an operation on a stream that waits stays behind, and with it all
    that follows on that stream.
    """

    def __init__(self, executor: Executor, program: Program) -> None:
        self.executor = executor
        self.program = program
        self.rank = program.rank
        self.timeline = Timeline(program)
        n = len(program.ops)
        self.host_ns = 0
        self.next = 0
        """The operation the host issues next."""
        self.blocked_by = BY_HOST
        self.issue_ns = [0] * n
        self.issued_ns = [0] * n
        self.before: list[int] = [-1] * n
        """The previous operation on the same stream."""
        self.tail: dict[str, int] = {}
        self.waiting: dict[str, deque[int]] = {}
        """Issued and not started, by stream."""

    @property
    def done(self) -> bool:
        """Whether everything was issued and has ended."""
        return self.next == len(self.program.ops) and UNKNOWN not in self.timeline.end_ns

    def issue(self) -> None:
        """Let the host run ahead until it must wait."""
        ops = self.program.ops
        for i in range(self.next, len(ops)):
            op = ops[i]
            if op.kind == Kind.SYNC:
                if not self._known(i, op):
                    self.next = i
                    return
                self._sync_done(i, op)
            elif op.kind == Kind.HOST:
                self._run_on_host(i, op)
            else:
                self._issue_one(i, op)
        self.next = len(ops)

    def _known(self, i: int, op: Op) -> bool:
        """Whether the ends of all it waits for are known."""
        end_ns = self.timeline.end_ns
        return UNKNOWN not in [end_ns[i - back] for back in op.back]

    def _sync_done(self, i: int, op: Op) -> None:
        line = self.timeline
        line.start_ns[i] = line.met_ns[i] = self.host_ns = self.host_ns + op.before_ns
        line.blocked_by[i] = self.blocked_by
        for back in op.back:
            if line.end_ns[i - back] > self.host_ns:
                self.host_ns = line.end_ns[i - back]
                line.cause[i] = i - back
                self.blocked_by = i
        line.end_ns[i] = self.host_ns

    def _run_on_host(self, i: int, op: Op) -> None:
        line = self.timeline
        line.start_ns[i] = line.met_ns[i] = self.host_ns + op.before_ns
        self.host_ns += op.before_ns + op.host_ns
        line.end_ns[i] = self.host_ns
        line.blocked_by[i] = self.blocked_by
        self.blocked_by = i

    def _issue_one(self, i: int, op: Op) -> None:
        stream = op.stream
        self.issue_ns[i] = issue = self.host_ns + op.before_ns
        self.issued_ns[i] = self.host_ns = issue + op.host_ns
        self.timeline.blocked_by[i] = self.blocked_by
        self.before[i] = self.tail.get(stream, -1)
        self.tail[stream] = i
        waiting = self.waiting.get(stream)
        if waiting:
            waiting.append(i)
        elif not self._start(i, op):
            self.waiting.setdefault(stream, deque()).append(i)

    def _start(self, i: int, op: Op) -> bool:
        """Start an operation if all it waits for is known to end, and when."""
        line = self.timeline
        end_ns = line.end_ns
        start, cause = self.issue_ns[i], BY_HOST
        previous = self.before[i]
        if previous >= 0:
            end = end_ns[previous]
            if end > start:
                start, cause = end, previous
            elif end == UNKNOWN:
                return False
        for back in op.back:
            end = end_ns[i - back]
            if end > start:
                start, cause = end, i - back
            elif end == UNKNOWN:
                return False
        line.start_ns[i] = start
        line.cause[i] = cause
        duration = op.duration_ns
        if op.kind != Kind.LOCAL:
            alone = self.executor.alone_ns(op, self.rank)
            if alone is None:
                self.executor.arrive(self, i, op, start)
                return True
            duration = alone
        line.met_ns[i] = start
        end, issued = start + duration, self.issued_ns[i]
        end_ns[i] = end if end > issued else issued
        return True

    def finish(self, i: int, met_ns: int, end_ns: int) -> None:
        """A communication ended."""
        line = self.timeline
        line.met_ns[i] = met_ns
        line.end_ns[i] = max(end_ns, self.issued_ns[i])

    def go_on(self) -> None:
        """Start all that waits no longer, in program order; the host may go on as well."""
        ops = self.program.ops
        heads = [(queue[0], stream) for stream, queue in self.waiting.items() if queue]
        heapify(heads)
        while heads:
            i, stream = heads[0]
            queue = self.waiting[stream]
            if self._start(i, ops[i]):
                queue.popleft()
                if queue:
                    heapreplace(heads, (queue[0], stream))
                    continue
            heappop(heads)
        if self.next < len(ops) and self._known(self.next, ops[self.next]):
            self.issue()


class Executor:
    """Plays programs that meet in collectives and sends.

    Parameters
    ----------
    simulation
        Its clock orders what happens between ranks.
    network
        Carries every communication.
    communicators
        Who takes part, and what a call costs.
    """

    def __init__(
        self, simulation: Simulation, network: Network, communicators: Communicators
    ) -> None:
        self.simulation = simulation
        self.network = network
        self.comms = communicators
        self.players: list[RankPlayer] = []
        self.loads: dict[Ways, Loads] = {}
        """What communications put on the network's links."""
        self.alone: dict[str, bool] = {}
        """Whether a communicator of one simulated rank has its links to itself."""
        self.durations: dict[tuple[Op, int], int | None] = {}
        self.calls: dict[tuple[int, object], int] = {}
        self.meetings: dict[tuple[object, int], Meeting] = {}

    def play(self, programs: Sequence[Program]) -> list[Timeline]:
        """Run all programs to their end.

        Raises
        ------
        InvariantViolation
            Ranks wait for each other for ever.
        """
        self.loads = loads_of(programs, self.comms)
        self.alone = communicators_alone(programs, self.comms)
        self.players = [RankPlayer(self, program) for program in programs]
        for player in self.players:
            self.simulation.call_at(self.simulation.now_ns, self._begin, player)
        self.simulation.run()
        self._assert_done()
        return [player.timeline for player in self.players]

    def where(self) -> Moment:
        """The step that the last rank is in, and how much of everything has been issued."""
        last = min(self.players, key=_issued, default=None)
        share = 0.0 if last is None else _issued(last)
        now_ns, events = self.simulation.now_ns, self.simulation.log.events
        if last is None:
            return Moment("playing", share, now_ns, None, events)
        ends = last.program.step_ends
        step = min(bisect_right(ends, last.next) + 1, len(ends))
        ranks = f"{len(self.players):,} rank{'s' * (len(self.players) != 1)}"
        return Moment(f"playing step {step} of {len(ends)}, {ranks}", share, now_ns, None, events)

    def _begin(self, player: RankPlayer) -> None:
        player.host_ns = self.simulation.now_ns
        player.issue()

    def alone_ns(self, op: Op, rank: int) -> int | None:
        """Time of a communication that nothing can interfere with; None: it must meet others."""
        key = op, rank
        if key in self.durations:
            return self.durations[key]
        known = None
        if op.kind == Kind.COLLECTIVE and op.call is not None and self.alone.get(op.call.group):
            known = to_ns(self.comms.traffic(op.call, rank).cost.seconds)
        self.durations[key] = known
        return known

    def arrive(self, player: RankPlayer, i: int, op: Op, at_ns: int) -> None:
        """A rank reached a communication; start it when all have."""
        assert op.call is not None, f"{op!r} communicates without a call"
        channel: object
        if op.kind == Kind.COLLECTIVE:
            channel = self.comms.members(op.call.group, player.rank)
            expected = self.comms.participants(op.call.group, player.rank)
        else:
            pair = (player.rank, op.call.peer)
            channel = pair if op.kind == Kind.SEND else pair[::-1]
            channel = ("p2p", *channel, op.call.tag)
            expected = 2
        count = self.calls.get((player.rank, channel), 0)
        self.calls[player.rank, channel] = count + 1
        key = (channel, count)
        meeting = self.meetings.get(key)
        if meeting is None:
            meeting = self.meetings[key] = Meeting(expected)
        meeting.arrivals.append((player, i))
        meeting.ready_ns = max(meeting.ready_ns, at_ns)
        if len(meeting.arrivals) == meeting.expected:
            del self.meetings[key]
            self.simulation.call_at(meeting.ready_ns, self._start, meeting)

    def _start(self, meeting: Meeting) -> None:
        player, i = meeting.arrivals[0]
        op = player.program.ops[i]
        call = op.call
        assert call is not None, f"{op!r} communicates without a call"
        for other, j in meeting.arrivals:
            theirs = other.program.ops[j].call
            assert theirs is not None, f"{other.program.ops[j]!r} communicates without a call"
            assert theirs[:3] == call[:3], (
                f"ranks {player.rank} and {other.rank} disagree: {call} and {theirs}"
            )
        traffic = self.comms.traffic_of(op, player.rank)
        self.network.start(
            self.loads[traffic.ways],
            float(call.size_bytes),
            latency_ns=to_ns(traffic.cost.latency_s),
            max_bytes_per_s=traffic.cost.bytes_per_s,
            then=self._end,
            arg=meeting,
        )

    def _end(self, meeting: Meeting) -> None:
        now = self.simulation.now_ns
        for player, i in meeting.arrivals:
            player.finish(i, meeting.ready_ns, now)
        for player, _ in meeting.arrivals:
            player.go_on()

    def _assert_done(self) -> None:
        stuck = [p for p in self.players if not p.done]
        if stuck:
            where = "; ".join(
                f"rank {p.rank} before operation {p.next} of {len(p.program.ops)}"
                for p in stuck[:4]
            )
            raise InvariantViolation(f"{len(stuck)} ranks wait for ever: {where}")


def _issued(player: RankPlayer) -> float:
    """Share of its program."""
    return player.next / max(1, len(player.program.ops))
