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

from collections.abc import Sequence

from raysim.errors import InvariantViolation
from raysim.hardware.network import Network
from raysim.kernel.simulation import Simulation
from raysim.training.communicators import Communicators
from raysim.training.program import COMPUTE, Kind, Op, Program
from raysim.units import to_ns

UNKNOWN = -1
NEGLIGIBLE_BYTES = 1 << 16
"""Calls below this are latency: they neither slow others nor are slowed."""
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
    """Plays one program."""

    def __init__(self, executor: Executor, program: Program) -> None:
        self.executor = executor
        self.program = program
        self.rank = program.rank
        self.timeline = Timeline(program)
        n = len(program.ops)
        self.host_ns = 0
        self.next = 0
        self.blocked_by = BY_HOST
        self.issue_ns = [0] * n
        self.issued_ns = [0] * n
        self.before: list[int] = [-1] * n
        self.pending = [0] * n
        self.dependents: dict[int, list[int]] = {}
        self.tail: dict[str, int] = {}
        self.host_waits = 0

    @property
    def done(self) -> bool:
        """Whether everything was issued and has ended."""
        return self.next == len(self.program.ops) and UNKNOWN not in self.timeline.end_ns

    def issue(self) -> None:
        """Let the host run ahead until it must wait."""
        ops = self.program.ops
        end_ns = self.timeline.end_ns
        work: list[int] = []
        i = self.next
        while i < len(ops):
            op = ops[i]
            self.next = i
            if op.kind == Kind.SYNC:
                unknown = [w for w in op.waits if end_ns[w] == UNKNOWN]
                if unknown:
                    self.host_waits = len(unknown)
                    for w in unknown:
                        self.dependents.setdefault(w, []).append(i)
                    return
                self._sync_done(i, op)
            elif op.kind == Kind.HOST:
                self._run_on_host(i, op)
            else:
                self._issue_one(i, op, work)
                if work:
                    self._propagate(work)
            i += 1
        self.next = i

    def _sync_done(self, i: int, op: Op) -> None:
        line = self.timeline
        line.start_ns[i] = line.met_ns[i] = self.host_ns = self.host_ns + op.before_ns
        line.blocked_by[i] = self.blocked_by
        for w in op.waits:
            if line.end_ns[w] > self.host_ns:
                self.host_ns = line.end_ns[w]
                line.cause[i] = w
                self.blocked_by = i
        line.end_ns[i] = self.host_ns

    def _run_on_host(self, i: int, op: Op) -> None:
        line = self.timeline
        line.start_ns[i] = line.met_ns[i] = self.host_ns + op.before_ns
        self.host_ns += op.before_ns + op.host_ns
        line.end_ns[i] = self.host_ns
        line.blocked_by[i] = self.blocked_by
        self.blocked_by = i

    def _issue_one(self, i: int, op: Op, work: list[int]) -> None:
        self.issue_ns[i] = self.host_ns = self.host_ns + op.before_ns
        self.host_ns += op.host_ns
        self.issued_ns[i] = self.host_ns
        self.timeline.blocked_by[i] = self.blocked_by
        end_ns = self.timeline.end_ns
        previous = self.before[i] = self.tail.get(op.stream, -1)
        self.tail[op.stream] = i
        waits = op.waits if previous < 0 else (previous, *op.waits)
        unknown = 0
        for w in waits:
            if end_ns[w] == UNKNOWN:
                unknown += 1
                self.dependents.setdefault(w, []).append(i)
        if unknown:
            self.pending[i] = unknown
        else:
            work.append(i)

    def _propagate(self, work: list[int]) -> None:
        """Start what is ready; whatever ends by that may make more ready."""
        ops, line = self.program.ops, self.timeline
        while work:
            i = work.pop()
            op = ops[i]
            start = self._start(i, op)
            line.start_ns[i] = start
            duration = self.executor.duration_ns(op, self.rank)
            if duration is None:
                self.executor.arrive(self, i, op, start)
                continue
            line.met_ns[i] = start
            line.end_ns[i] = max(start + duration, self.issued_ns[i])
            self._release(i, work)

    def _start(self, i: int, op: Op) -> int:
        line = self.timeline
        start, cause = self.issue_ns[i], BY_HOST
        previous = self.before[i]
        if previous >= 0 and line.end_ns[previous] > start:
            start, cause = line.end_ns[previous], previous
        for w in op.waits:
            if line.end_ns[w] > start:
                start, cause = line.end_ns[w], w
        line.cause[i] = cause
        return start

    def _release(self, i: int, work: list[int]) -> None:
        """``i`` has ended: count down those that wait for it."""
        waiting = self.dependents.pop(i, None)
        if waiting is None:
            return
        for d in waiting:
            if self.program.ops[d].kind == Kind.SYNC:
                self.host_waits -= 1
                continue
            self.pending[d] -= 1
            if not self.pending[d]:
                work.append(d)

    def finish(self, i: int, met_ns: int, end_ns: int) -> None:
        """A communication ended: go on with all that it held up."""
        line = self.timeline
        line.met_ns[i] = met_ns
        line.end_ns[i] = max(end_ns, self.issued_ns[i])
        held = self.host_waits
        work: list[int] = []
        self._release(i, work)
        self._propagate(work)
        if held and not self.host_waits:
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
        self.alone: dict[str, bool] = {}
        """Whether a communicator of one simulated rank has its links to itself."""
        self.calls: dict[tuple[int, object], int] = {}
        self.meetings: dict[tuple[object, int], Meeting] = {}

    def play(self, programs: Sequence[Program]) -> list[Timeline]:
        """Run all programs to their end.

        Raises
        ------
        InvariantViolation
            Ranks wait for each other for ever.
        """
        self.alone = _communicators_alone(programs, self.comms)
        self.players = [RankPlayer(self, program) for program in programs]
        for player in self.players:
            self.simulation.call_at(self.simulation.now_ns, self._begin, player)
        self.simulation.run()
        self._assert_done()
        return [player.timeline for player in self.players]

    def _begin(self, player: RankPlayer) -> None:
        player.host_ns = self.simulation.now_ns
        player.issue()

    def duration_ns(self, op: Op, rank: int) -> int | None:
        """Time of an operation that nothing can interfere with; None: it must meet others."""
        if op.kind == Kind.LOCAL:
            return op.duration_ns
        if op.kind == Kind.COLLECTIVE and op.call is not None and self.alone.get(op.call.group):
            return to_ns(self.comms.traffic(op.call, rank).cost.seconds)
        return None

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
            traffic.loads,
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

    def _assert_done(self) -> None:
        stuck = [p for p in self.players if not p.done]
        if stuck:
            where = "; ".join(
                f"rank {p.rank} before operation {p.next} of {len(p.program.ops)}"
                for p in stuck[:4]
            )
            raise InvariantViolation(f"{len(stuck)} ranks wait for ever: {where}")


def _communicators_alone(programs: Sequence[Program], comms: Communicators) -> dict[str, bool]:
    """Communicators in which one simulated rank stands for all, and whose links no other uses.

    What their calls cost is then arithmetic, unless a link is narrower than that took it for.
    Calls too small to slow anything down are not looked at.
    """
    users: dict[int, set[tuple[str, int]]] = {}
    links: dict[str, set[int]] = {}
    single: dict[str, bool] = {}
    seen: set[tuple[str, int, int]] = set()
    narrowed = {id(link) for link in comms.topology.narrowed}
    for program in programs:
        rank = program.rank
        distinct = {(op.kind, op.call): op for op in program.ops if op.call is not None}
        for (kind, call), op in distinct.items():
            if call is None or call.size_bytes < NEGLIGIBLE_BYTES:
                continue
            collective = kind == Kind.COLLECTIVE
            name = call.group if collective else "p2p"
            one = collective and comms.participants(name, rank) == 1
            single[name] = single.get(name, True) and one
            loads = comms.traffic_of(op, rank).loads
            if (name, rank, id(loads)) in seen:
                continue
            seen.add((name, rank, id(loads)))
            for link in loads.links:
                links.setdefault(name, set()).add(id(link))
                users.setdefault(id(link), set()).add((name, rank))
    return {
        name: single[name]
        and all(len(users[link]) == 1 and link not in narrowed for link in links.get(name, ()))
        for name in single
    }
