"""The data path without a cluster: closed forms, limits, batches, models, composition."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.raylibs.serve.bench import BareProcess, Bench, play
from raysim.raylibs.serve.clients import PythonClient
from raysim.raylibs.serve.config import BatchConfig, DeploymentConfig, MultiplexConfig, Work
from raysim.raylibs.serve.costs import DEFAULT
from raysim.raylibs.serve.event_loop import EventLoop
from raysim.raylibs.serve.load import ClosedLoop, Trace
from tests.unit.raylibs.serve.parts import FREE, app, bench, one, steady


def test_one_server_is_m_d_1() -> None:
    """Mean wait of Poisson arrivals at one deterministic server: rho s / (2 (1 - rho))."""
    service_s, rho = 0.01, 0.7
    log = play(bench(one(Work(busy_s=service_s), max_ongoing_requests=10_000), steady(70, 1_000)))
    assert log.latency_s.mean() == pytest.approx(service_s * (1 + rho / (2 * (1 - rho))), rel=0.05)


def test_a_closed_loop_obeys_littles_law() -> None:
    spec = bench(one(Work(wait_s=0.1), num_replicas=2, max_ongoing_requests=5), ClosedLoop(users=8))
    summary = play(spec).summary(until_s=60.0)
    assert summary.rps * summary.mean_s == pytest.approx(8, rel=0.01)
    assert summary.p99_s == pytest.approx(0.1, rel=0.01)


def test_max_ongoing_requests_bounds_throughput() -> None:
    """Two replicas of five at 0.1 s each could serve 100 a second.

    Ray's routers back off up to half a second from full replicas, whose slots are free meanwhile.
    """
    sim = Simulation()
    asked = bench(one(Work(wait_s=0.1), num_replicas=2), ClosedLoop(users=40, duration_s=20.0))
    made = Bench(sim, asked)
    summary = made.run().summary(2.0, 20.0)
    assert 50 < summary.rps < 100
    assert {r.most_ongoing for r in made.instance.running["model"]} == {5}


def test_the_first_room_is_given_to_all_that_wait() -> None:
    """320 calls at 16 slots of 50 ms: 1 s of work, that took real Ray 2.60 between 7 and 26 s.

    With slots for all of them nobody waits, and nobody is refused.
    """

    def lasts_s(slots: int) -> float:
        application = one(Work(wait_s=0.05), num_replicas=2, max_ongoing_requests=slots)
        load = ClosedLoop(users=320, requests=320, duration_s=100.0)
        return float(play(bench(application, load, costs=DEFAULT)).ended_s.max())

    assert 4.0 < lasts_s(8) < 40.0
    assert lasts_s(320) < 1.0


def test_two_choices_balance_better_than_chance() -> None:
    def p99(kind: str) -> float:
        application = one(
            Work(wait_s=0.1, cv=0.5), num_replicas=8, max_ongoing_requests=100,
            request_router=kind,
        )  # fmt: skip
        sim = Simulation()
        made = Bench(sim, bench(application, steady(400, 15)))
        made.run()
        return max(r.most_ongoing for r in made.instance.running["model"])

    assert p99("power_of_two") < p99("random")


def test_too_many_queued_are_refused() -> None:
    application = one(Work(wait_s=1.0), max_ongoing_requests=1, max_queued_requests=2)
    log = play(bench(application, Trace(times_s=(0.0, 0.1, 0.2, 0.3, 0.4))))
    assert log.statuses == {"ok": 3, "backpressure": 2}


def test_a_batch_waits_for_its_first_request_or_is_full() -> None:
    batch = BatchConfig(max_batch_size=3, batch_wait_timeout_s=0.05)
    application = one(Work(busy_s=0.1, per_item_busy_s=0.01), batch=batch, max_ongoing_requests=10)
    alone = play(bench(application, Trace(times_s=(0.0,))))
    assert alone.latency_s == pytest.approx([0.05 + 0.11])
    full = play(bench(application, Trace(times_s=(0.0, 0.01, 0.02))))
    assert full.latency_s == pytest.approx([0.02 + 0.13, 0.01 + 0.13, 0.13])


def test_batches_never_fill_beyond_max_ongoing_requests() -> None:
    """Ray's defaults: five at once, batches of ten."""
    batch = BatchConfig(max_batch_size=10, batch_wait_timeout_s=0.01)
    sizes = {}
    for ongoing in (5, 20):
        sim = Simulation()
        asked = bench(
            one(Work(busy_s=0.05), batch=batch, max_ongoing_requests=ongoing),
            ClosedLoop(users=20, duration_s=5.0),
        )
        made = Bench(sim, asked)
        made.run()
        (replica,) = made.instance.running["model"]
        batches = replica.code.batches_of(replica)
        assert batches is not None
        sizes[ongoing] = max(batches.sizes)
    assert sizes == {5: 5, 20: 10}


def test_a_model_is_loaded_once_and_the_oldest_goes() -> None:
    application = one(
        Work(wait_s=0.1), multiplex=MultiplexConfig(max_num_models_per_replica=2, load_s=3.0),
        max_ongoing_requests=100,
    )  # fmt: skip
    few, many = (play(bench(application, steady(5, 120), models=n)) for n in (2, 6))
    assert np.sort(few.latency_s)[-40] < 0.2, "but for six seconds of loading"
    assert np.median(many.latency_s) > 3.0


def test_routers_send_requests_to_replicas_that_have_the_model() -> None:
    loads = {}
    for kind in ("power_of_two", "random"):
        application = one(
            Work(wait_s=0.05), num_replicas=3, max_ongoing_requests=100, request_router=kind,
            multiplex=MultiplexConfig(max_num_models_per_replica=3, load_s=0.5),
        )  # fmt: skip
        made = Bench(Simulation(), bench(application, steady(20, 100), models=6))
        made.run()
        replicas = made.instance.running["model"]
        loads[kind] = sum(r.models.loads for r in replicas if r.models is not None)
    assert loads["power_of_two"] < loads["random"] / 5


def test_groups_of_calls_go_one_after_another_and_within_a_group_at_once() -> None:
    application = app(
        DeploymentConfig(name="ingress", work=Work(wait_s=0.01, calls=(("a", "b"), ("c",)))),
        DeploymentConfig(name="a", work=Work(wait_s=0.2)),
        DeploymentConfig(name="b", work=Work(wait_s=0.3)),
        DeploymentConfig(name="c", work=Work(wait_s=0.04)),
    )
    log = play(bench(application, Trace(times_s=(0.0,))))
    assert log.latency_s == pytest.approx([0.01 + 0.3 + 0.04])


def test_what_a_callee_raises_its_caller_fails_with() -> None:
    application = app(
        DeploymentConfig(name="ingress", work=Work(calls=(("a",),))),
        DeploymentConfig(name="a", work=Work(wait_s=0.1, fails_frac=0.25)),
    )
    log = play(bench(application, steady(50, 200)))
    failed = log.statuses["user_error"] / sum(log.statuses.values())
    assert failed == pytest.approx(0.25, abs=0.02)


def test_chunks_come_one_by_one() -> None:
    application = one(Work(wait_s=0.5, chunks=5, chunk_interval_s=0.1))
    log = play(bench(application, Trace(times_s=(0.0,))))
    assert log.first_chunk_s == pytest.approx([0.5])
    assert log.latency_s == pytest.approx([1.0])


def test_streams_of_one_replica_take_turns_chunk_by_chunk() -> None:
    costs = replace(FREE, replica_chunk_s=0.01, turn_frac=0.0)
    log = play(bench(one(Work(chunks=5)), Trace(times_s=(0.0, 0.0)), costs=costs))
    assert log.first_chunk_s == pytest.approx([0.01, 0.02])
    assert log.latency_s == pytest.approx([0.10, 0.10]), "not 0.05 and 0.10"


def test_a_chunk_alone_in_its_turn_pays_for_it() -> None:
    costs = replace(FREE, replica_chunk_s=0.01, turn_frac=0.5)

    def took_s(streams: int) -> float:
        log = play(bench(one(Work(chunks=10)), Trace(times_s=(0.0,) * streams), costs=costs))
        return max(log.latency_s)

    assert took_s(1) == pytest.approx(10 * 0.015)
    assert took_s(2) == pytest.approx(20 * 0.015), "each comes back when the other's turn begins"
    # from the second turn on all but one are there when a turn begins
    assert took_s(5) == pytest.approx(50 * 0.01 + 0.005 * 50 / 4, abs=0.015)


def test_a_loop_runs_in_one_turn_what_came_during_the_one_before() -> None:
    sim = Simulation()
    loop, ends = EventLoop(BareProcess(sim)), []
    for at_ns in (0, 1, 2, 12):  # [0] for 15, then [1, 2] for 25; 12 came before that began
        sim.clock.call_later(
            at_ns, lambda _: loop.run(10, lambda _: ends.append(sim.now_ns), None, 5), None
        )
    sim.run()
    assert ends == [15, 30, 40, 50]
    assert loop.busy_ns == 50


@pytest.mark.parametrize(("thread", "expected_s"), [(True, [0.12, 0.22]), (False, [0.23, 0.24])])
def test_user_code_without_a_thread_of_its_own_holds_the_loop_up(
    thread: bool, expected_s: list[float]
) -> None:
    """Two come (0.01 s each), are worked on (0.1) and go (0.01): beside the loop, or on it."""
    costs = replace(FREE, ingress_s=0.02, user_thread=thread)
    log = play(bench(one(Work(busy_s=0.1)), Trace(times_s=(0.0, 0.0)), costs=costs))
    assert log.latency_s == pytest.approx(expected_s)


@pytest.mark.parametrize(("thread", "first_s"), [(True, 0.165), (False, 0.17)])
def test_python_of_a_batch_takes_turns_with_the_loop(thread: bool, first_s: float) -> None:
    """Batches of two: 0.1 s, then 0.01 s of Python for each.

    Beside the loop the first item runs after who has come at 0.115 s, the second after who has come
    at 0.13, and the answer goes at 0.155. On the loop they come first, and the answer is third.
    """
    costs = replace(FREE, ingress_s=0.02, user_thread=thread)
    work = Work(busy_s=0.1, per_item_python_s=0.01)
    application = one(work, batch=BatchConfig(max_batch_size=2), max_ongoing_requests=10)
    log = play(bench(application, Trace(times_s=(0.0, 0.0, 0.115, 0.13)), costs=costs))
    assert log.latency_s[0] == pytest.approx(first_s)


def test_a_client_in_python_sends_what_its_processes_can() -> None:
    client = PythonClient(processes=2, request_s=0.01, connect_s=0.03, turn_s=0.0, chunk_s=0.002)
    application = one(Work(chunks=5), max_ongoing_requests=100)
    for connects, each_s in ((False, 0.02), (True, 0.05)):
        asked = bench(application, ClosedLoop(users=16, duration_s=20.0), costs=FREE)
        asked = replace(asked, python=replace(client, connects=connects))
        assert play(asked).summary(2.0, 20.0).rps == pytest.approx(2 / each_s, rel=0.02)


def test_a_hop_costs_what_the_table_says() -> None:
    """Proxy, two replicas, a handle between them, six transits; no variation."""
    costs = replace(DEFAULT, cv=0.0, pause_s=0.0, cross_node_s=0.0)
    application = app(
        DeploymentConfig(name="ingress", work=Work(calls=(("a",),))), DeploymentConfig(name="a")
    )
    log = play(bench(application, Trace(times_s=(1.0,)), costs=costs))
    loops_s = costs.proxy_s + costs.ingress_s + costs.handle_s + costs.replica_s
    assert log.latency_s == pytest.approx([loops_s + 6 * costs.transit_s], abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60),
    st.integers(1, 3), st.integers(1, 4), st.integers(-1, 5), st.booleans(),
)  # fmt: skip
def test_every_request_ends_once(
    times: list[float], replicas: int, ongoing: int, queued: int, batched: bool
) -> None:
    application = one(
        Work(wait_s=0.3, busy_s=0.1, cv=1.0), num_replicas=replicas, max_ongoing_requests=ongoing,
        max_queued_requests=queued, batch=BatchConfig(max_batch_size=3) if batched else None,
    )  # fmt: skip
    log = play(bench(application, Trace(times_s=tuple(sorted(times))), costs=DEFAULT))
    assert sum(log.statuses.values()) == len(times)
    assert queued >= 0 or log.statuses == {"ok": len(times)}


def test_the_same_seed_is_the_same_run() -> None:
    spec = bench(one(Work(busy_s=0.01, cv=1.0), num_replicas=3), steady(100, 20), costs=DEFAULT)
    first, again, other = (play(spec, seed=s) for s in (1, 1, 2))
    assert first.latency_s.tolist() == again.latency_s.tolist()
    assert first.latency_s.tolist() != other.latency_s.tolist()


def test_requests_that_are_over_are_no_work_for_the_collector() -> None:
    """A look for garbage after each point was a sixth of a plan's time."""
    model = DeploymentConfig(name="m", batch=BatchConfig(max_batch_size=2))
    application = app(DeploymentConfig(name="in", work=Work(calls=(("m",),))), model)
    times = tuple(0.01 * i for i in range(2_000))
    gc.collect()
    with collector_at_ease():
        play(bench(application, Trace(times_s=times), costs=DEFAULT))
        left = gc.collect()
    assert left < 10_000  # what the log of the last events holds, and the application
