"""Worker processes: starts, matching, prestart, idle killing, failures."""

from __future__ import annotations

from raysim.raycore.config import RayConfig
from raysim.raycore.protocol import (
    ExitWorker,
    JobFinished,
    LeaseCancelled,
    RegisterClient,
    WorkerFailed,
    raylet,
)
from raysim.raycore.tasks import RuntimeEnv
from tests.unit.raycore.raylet_parts import MS, Owner, S, World, options, world


def lease_all(w: World, owner: Owner, count: int, **kwargs: object) -> list[int]:
    f = options(**kwargs)
    return [owner.ask(f) for _ in range(count)]


def test_at_most_as_many_start_at_once_as_there_are_cpus() -> None:
    w = world([{"CPU": 4, "x": 100}], start_ns=S)
    owner = w.owner()
    lease_all(w, owner, 10, resources={"x": 1})
    w.run_for(10 * MS)
    assert len(w.starts) == 4
    w.run_for(S)
    assert len(owner.grants) == 4
    assert len(w.starts) == 8
    w.run_for(2 * S)
    assert len(owner.grants) == 10


def test_a_returned_worker_serves_who_waits_for_a_process() -> None:
    w = world([{"CPU": 1, "x": 2}])
    owner = w.owner()
    first = owner.ask(options(resources={"x": 1}))
    w.run_for(MS)
    w.start_ns = 5 * S
    second = owner.ask(options(resources={"x": 1}))
    w.run_for(MS)
    assert len(w.starts) == 2
    owner.give_back(first)
    w.run_for(MS)
    assert second in owner.granted
    w.run_for(5 * S)
    assert len(w.raylet().pool.idle) == 1  # the process that was started for it


def test_the_most_recently_idle_worker_goes_first() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    f = options()
    one, two = owner.ask(f), owner.ask(f)
    w.run_for(MS)
    last = owner.granted[one].worker
    owner.give_back(two)
    w.run_for(MS)
    owner.give_back(one)
    w.run_for(MS)
    three = owner.ask(f)
    w.run_for(MS)
    assert owner.granted[three].worker == last


def test_workers_of_another_job_or_environment_do_not_match() -> None:
    w = world([{"CPU": 1}])
    mine, other = w.owner(job_id=1), w.owner(job_id=2)
    mine.give_back(lease_and_run(w, mine))
    w.run_for(MS)
    other.give_back(lease_and_run(w, other))
    w.run_for(MS)
    assert len(w.starts) == 2
    env = options(runtime_env=RuntimeEnv(key="e"))
    mine.ask(env)
    w.run_for(MS)
    assert len(w.starts) == 3


def lease_and_run(w: World, owner: Owner) -> int:
    lease = owner.ask(options())
    w.run_for(MS)
    return lease


def test_a_runtime_env_is_made_once_per_node() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    f = options(runtime_env=RuntimeEnv(key="e", setup_s=3.0))
    owner.ask(f)
    owner.ask(f)
    w.run_for(3 * S + MS)
    assert len(owner.grants) == 2
    for lease in list(owner.granted):
        worker = owner.granted[lease].worker.worker_id
        owner.give_back(lease, worker_exiting=True)
        w.kill(worker, reason="max_calls", intended=True)
    owner.ask(f)
    w.run_for(10 * MS)
    assert len(owner.grants) == 3


def test_a_runtime_env_that_fails_cancels_with_its_message() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    bad = RuntimeEnv(key="bad", setup_s=2.0, error="no such package")
    lease = owner.ask(options(runtime_env=bad))
    w.run_for(2 * S + MS)
    assert owner.answer(lease) == LeaseCancelled("RUNTIME_ENV_SETUP_FAILED", "no such package")
    assert w.raylet().resources.available == {"CPU": 10_000}


def test_a_process_that_never_registers_is_given_up_after_a_minute_five_times() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    w.fail_starts = 100
    lease = owner.ask(options())
    w.run_for(301 * S)
    assert len(w.starts) == 6
    assert owner.answer(lease) is None
    w.run_for(60 * S)
    assert owner.answer(lease).failure == "WORKER_START_FAILED"
    assert len(w.starts) == 6


def test_the_first_driver_gets_a_warm_node_and_waits_for_it() -> None:
    w = world([{"CPU": 3}, {"CPU": 3}], start_ns=S)
    driver = w.owner()
    registered: list[int] = []
    message = RegisterClient(driver.me, "DRIVER", 1)
    driver.call(raylet(0), message, lambda _: registered.append(w.sim.now_ns))
    w.run_for(S // 2)
    assert not registered
    assert w.starts == [(w.starts[0][0], 0)] * 3
    w.run_for(S)
    assert len(registered) == 1
    second = w.owner()
    second.call(raylet(0), RegisterClient(second.me, "DRIVER", 2), registered.append)
    w.run_for(MS)
    assert len(registered) == 2
    assert len(w.starts) == 3


def test_idle_workers_beyond_the_free_cpus_end_after_a_second() -> None:
    """Litmus 14: after a pause a burst larger than the free CPUs starts processes again."""
    w = world([{"CPU": 2, "x": 6}])
    owner = w.owner()
    leases = lease_all(w, owner, 6, resources={"x": 1})
    w.run_for(500 * MS)
    for lease in leases:
        owner.give_back(lease)
    w.run_for(900 * MS)
    assert len(w.raylet().pool.idle) == 6
    w.run_for(300 * MS)
    assert len(w.raylet().pool.idle) == 2
    starts = len(w.starts)
    lease_all(w, owner, 6, resources={"x": 1})
    w.run_for(MS)
    assert len(w.starts) - starts == 4


def test_idle_kills_fall_on_the_beat_and_are_not_reported_as_failures() -> None:
    w = world([{"CPU": 1, "x": 2}])
    owner = w.owner()
    leases = lease_all(w, owner, 2, resources={"x": 1})
    w.run_for(350 * MS)
    for lease in leases:
        owner.give_back(lease)
    w.run_for(10 * MS)
    seen_ns = w.sim.now_ns
    while len(w.raylet().pool.idle) == 2:
        w.run_for(MS)
        seen_ns = w.sim.now_ns
    assert 1_400 * MS <= seen_ns <= 1_402 * MS
    assert not w.gcs.of(WorkerFailed)


def test_a_worker_that_may_not_leave_stays() -> None:
    w = world([{"CPU": 1, "x": 2}])
    owner = w.owner()
    leases = lease_all(w, owner, 2, resources={"x": 1})
    w.run_for(MS)
    for process in w.processes.values():
        process.may_leave = False
    for lease in leases:
        owner.give_back(lease)
    w.run_for(1_500 * MS)
    assert len(w.raylet().pool.idle) == 2
    assert sum(len(p.of(ExitWorker)) for p in w.processes.values()) == 1


def test_workers_of_a_finished_job_end() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    busy, free = lease_and_run(w, owner), lease_and_run(w, owner)
    owner.give_back(free)
    w.run_for(MS)
    w.gcs.send(raylet(0), JobFinished(1))
    w.run_for(MS)
    assert not w.processes
    assert busy not in w.raylet().leases
    assert w.raylet().resources.available == {"CPU": 20_000}


def test_prestart_when_enabled_warms_every_node() -> None:
    w = world([{"CPU": 2}, {"CPU": 3}], config=RayConfig(enable_worker_prestart=True))
    w.run_for(MS)
    assert [node for _, node in w.starts] == [0, 0, 1, 1, 1]


def test_no_more_are_prestarted_than_may_start_at_once() -> None:
    """Real Ray 2.60: a node of 4 CPUs on a host of 2 cores has 2 idle workers, no more later."""
    config = RayConfig(enable_worker_prestart=True, worker_maximum_startup_concurrency=2)
    w = world([{"CPU": 4}], config=config)
    w.run_for(60 * S)
    assert len(w.starts) == 2


def test_a_request_has_workers_started_ahead_also_where_it_is_only_sent_on() -> None:
    """Real Ray 2.60: one task for a cold node starts two there and one on the way."""
    w = world([{"CPU": 2}, {"CPU": 2, "there": 1}], start_ns=MS)
    owner = w.owner()
    owner.ask(options(resources={"CPU": 1, "there": 1}), backlog=1)
    w.run_for(10 * MS)
    assert sorted(node for _, node in w.starts) == [0, 1, 1]
    owner.ask(options(), backlog=5)  # one is idle here, one CPU is free for another
    w.run_for(10 * MS)
    assert sorted(node for _, node in w.starts) == [0, 0, 1, 1]


def test_who_comes_first_is_served_and_the_lost_process_is_the_others_to_wait_for() -> None:
    w = world([{"CPU": 2}], start_ns=MS)
    owner = w.owner()
    w.fail_starts = 1
    first, second = lease_all(w, owner, 2)
    w.run_for(10 * MS)
    assert list(owner.granted) == [first]  # by the process that was started for the second
    w.run_for(61 * S)
    assert list(owner.granted) == [first, second]
    assert len(w.starts) == 3
