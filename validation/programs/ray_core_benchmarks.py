"""Ray's own release benchmarks of its core, said again as a plain Ray program.

    python ray_core_benchmarks.py METRIC...

prints one line per metric: its name, its value, its unit. It runs on real Ray and, unmodified, on
an emulated cluster. What each does follows ``release/microbenchmark`` and ``release/benchmarks`` of
ray-project/ray; repetitions are fewer, since emulated time does not scatter.
"""

import sys
import time

import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group

QUICK = 3
"""Repetitions of what takes about a second."""


@ray.remote
def no_op():
    return b"ok"


@ray.remote(num_cpus=0)
class Server:
    def no_op(self):
        return b"ok"


@ray.remote(num_cpus=0)
class Client:
    def __init__(self, servers):
        self.servers = servers

    def call_all(self, n):
        ray.get([server.no_op.remote() for server in self.servers for _ in range(n)])


@ray.remote
class Submitter:
    def submit_all(self, n):
        ray.get([no_op.remote() for _ in range(n)])


@ray.remote
def call_round(servers, n):
    ray.get([servers[i % len(servers)].no_op.remote() for i in range(n)])


def rate(work, count, repeat):
    """Calls per second, after one call that warms up."""
    work()
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    return count * repeat / (time.perf_counter() - start)


def single_client_tasks_sync():
    return rate(lambda: ray.get(no_op.remote()), 1, 300)


def single_client_tasks_async():
    return rate(lambda: ray.get([no_op.remote() for _ in range(1000)]), 1000, QUICK)


def actor_calls_sync():
    server = Server.remote()
    return rate(lambda: ray.get(server.no_op.remote()), 1, 300)


def actor_calls_async():
    server = Server.remote()
    return rate(lambda: ray.get([server.no_op.remote() for _ in range(1000)]), 1000, QUICK)


def one_to_many_actor_calls_async():
    servers = [Server.remote() for _ in range(32)]
    client = Client.remote(servers)
    n = 100
    return rate(lambda: ray.get(client.call_all.remote(n)), n * 32, QUICK)


def multi_client_tasks_async():
    submitters, n = [Submitter.remote() for _ in range(4)], 10_000
    return rate(lambda: ray.get([s.submit_all.remote(n) for s in submitters]), 4 * n, 1)


def many_to_many_actor_calls_async():
    servers, n = [Server.remote() for _ in range(32)], 5000
    return rate(lambda: ray.get([call_round.remote(servers, n) for _ in range(4)]), 4 * n, 1)


def single_client_get_calls():
    ref = ray.put(0)
    return rate(lambda: ray.get(ref), 1, 300)


def single_client_put_calls():
    return rate(lambda: ray.put(0), 1, 300)


def single_client_put_gigabytes():
    array = np.zeros(100 * 1024 * 1024, dtype=np.int64)
    end = time.perf_counter() + 4  # the store's memory has been written to once
    while time.perf_counter() < end:
        ray.put(array)
    return rate(lambda: ray.put(array), 0.8, 10)


def single_client_wait_1k_refs():
    def work():
        left = [no_op.remote() for _ in range(1000)]
        fetch_local = True
        for _ in range(1000):
            _, left = ray.wait(left, num_returns=1, fetch_local=fetch_local)
            fetch_local = False

    return rate(work, 1, QUICK)


def placement_group_create_removal():
    def work():
        groups = [placement_group(bundles=[{"custom": 0.001}]) for _ in range(100)]
        for group in groups:
            group.wait(timeout_seconds=30)
        for group in groups:
            remove_placement_group(group)

    return rate(work, 100, QUICK)


def many_args():
    @ray.remote
    def sum_args(*args):
        return sum(sum(arg) for arg in args)

    start = time.perf_counter()
    args = [[1 for _ in range(10_000)] for _ in range(10_000)]
    total = ray.get(sum_args.remote(*args))
    assert total == 10_000 * 10_000
    return time.perf_counter() - start


def many_returns():
    @ray.remote(num_returns=3000)
    def make():
        return [list(range(10_000)) for _ in range(3000)]

    start = time.perf_counter()
    for ref in make.remote():
        expected = list(range(10_000))
        assert ray.get(ref) == expected
    return time.perf_counter() - start


def many_objects():
    start = time.perf_counter()
    expected = list(range(10_000))
    for value in ray.get([ray.put(list(range(10_000))) for _ in range(10_000)]):
        assert value == expected
    expected = np.arange(10_000)
    for value in ray.get([ray.put(np.arange(10_000)) for _ in range(10_000)]):
        assert (value == expected).all()
    return time.perf_counter() - start


def large_object():
    start = time.perf_counter()
    array = np.zeros(100 * 2**30, dtype=np.int8)
    big = ray.get(ray.put(array))
    big[0], big[-1]
    return time.perf_counter() - start


BENCHMARKS = {
    "single_client_tasks_sync": (single_client_tasks_sync, "tasks/s"),
    "single_client_tasks_async": (single_client_tasks_async, "tasks/s"),
    "1_1_actor_calls_sync": (actor_calls_sync, "calls/s"),
    "1_1_actor_calls_async": (actor_calls_async, "calls/s"),
    "1_n_actor_calls_async": (one_to_many_actor_calls_async, "calls/s"),
    "multi_client_tasks_async": (multi_client_tasks_async, "tasks/s"),
    "n_n_actor_calls_async": (many_to_many_actor_calls_async, "calls/s"),
    "single_client_get_calls_Plasma_Store": (single_client_get_calls, "ops/s"),
    "single_client_put_calls_Plasma_Store": (single_client_put_calls, "ops/s"),
    "single_client_put_gigabytes": (single_client_put_gigabytes, "GB/s"),
    "single_client_wait_1k_refs": (single_client_wait_1k_refs, "ops/s"),
    "placement_group_create/removal": (placement_group_create_removal, "pgs/s"),
    "10000_args_time": (many_args, "s"),
    "3000_returns_time": (many_returns, "s"),
    "10000_get_time": (many_objects, "s"),
    "107374182400_large_object_time": (large_object, "s"),
}

if __name__ == "__main__":
    ray.init()
    for metric in sys.argv[1:] or BENCHMARKS:
        work, unit = BENCHMARKS[metric]
        print(metric, work(), unit)
