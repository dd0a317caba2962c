"""A room's ``busy_until`` is the single-server queue that SimPy simulates event by event."""

import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel import ColumnRecorder, Component, InstantTransport, Simulation


class Work:
    def __init__(self, i: int, cost_ns: int) -> None:
        self.i, self.cost_ns, self.size_bytes = i, cost_ns, 1


class Room(Component):
    service_ns = {Work: lambda m: m.cost_ns}  # noqa: RUF012

    def on_work(self, m, reply):
        self.done.append((self.sim.now_ns, m.i))


def room_plays(jobs, latency_ns, recorder=None):
    sim = Simulation(recorder=recorder)
    sim.transport = InstantTransport(sim.clock, latency_ns)
    room = sim.add(Room(sim, "server"))
    room.done = []
    client = sim.add(Component(sim, "client"))
    for i, (at_ns, cost_ns) in enumerate(jobs):
        sim.at(at_ns, client.send, "server", Work(i, cost_ns))
    sim.run()
    return room.done


def simpy_plays(jobs, latency_ns):
    env = simpy.Environment()
    server = simpy.Resource(env)
    done = []

    def job(i, at_ns, cost_ns):
        yield env.timeout(at_ns + latency_ns)
        with server.request() as turn:
            yield turn
            yield env.timeout(cost_ns)
            done.append((env.now, i))

    for i, (at_ns, cost_ns) in enumerate(jobs):
        env.process(job(i, at_ns, cost_ns))
    env.run()
    return done


JOBS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=60)


@given(JOBS, st.integers(0, 50))
@settings(max_examples=300, deadline=None)
def test_busy_until_is_a_simulated_single_server_queue(jobs, latency_ns):
    jobs = sorted(jobs, key=lambda job: job[0])
    assert room_plays(jobs, latency_ns) == simpy_plays(jobs, latency_ns)


@given(JOBS)
@settings(max_examples=100, deadline=None)
def test_service_is_in_order_never_idle_with_work_and_never_two_at_once(jobs):
    jobs = sorted(jobs, key=lambda job: job[0])
    recorder = ColumnRecorder()
    done = room_plays(jobs, 0, recorder)
    assert [i for _, i in done] == list(range(len(jobs)))
    end_ns = 0
    spans = iter(recorder.spans())
    for (finished_ns, _), (at_ns, cost_ns) in zip(done, jobs, strict=True):
        end_ns = max(end_ns, at_ns) + cost_ns  # Lindley
        assert finished_ns == end_ns
        if cost_ns:
            span = next(spans)
            assert (span.start_ns, span.end_ns, span.name) == (end_ns - cost_ns, end_ns, "Work")
            assert span.track == ("server",)
    assert next(spans, None) is None
