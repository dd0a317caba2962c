"""Generators whose worker dies or that raise: what is made again, and what is seen of it."""
# cluster: 2 CPU

import os
import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Attempts:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        return self.n

    def count(self):
        return self.n


@ray.remote(num_cpus=0)
def dies_once(attempts, n):
    at = ray.get(attempts.up.remote())
    for i in range(n):
        if at == 1 and i == 2:
            time.sleep(0.5)
            os._exit(1)
        yield i * 10


@ray.remote(num_cpus=0)
def raises(attempts, times, n):
    at = ray.get(attempts.up.remote())
    for i in range(n):
        if at <= times and i == 2:
            raise ValueError(f"attempt {at}")
        yield (i, at) if i >= 2 else i


@ray.remote(num_cpus=0)
def large(attempts, n):
    at = ray.get(attempts.up.remote())
    for i in range(n):
        if at == 1 and i == 1:
            time.sleep(0.5)
            os._exit(1)
        yield bytes([i]) * 300_000


def items(generator):
    seen = []
    for ref in generator:
        try:
            seen.append(ray.get(ref))
        except Exception as error:
            seen.append(type(error).__name__)
    return seen


attempts = Attempts.remote()
print("dies", items(dies_once.remote(attempts, 4)), ray.get(attempts.count.remote()))
attempts = Attempts.remote()
print("dies for good", items(dies_once.options(max_retries=0).remote(attempts, 4)))
attempts = Attempts.remote()
print("raises", items(raises.remote(attempts, 1, 4)), ray.get(attempts.count.remote()))
attempts = Attempts.remote()
call = raises.options(retry_exceptions=True, max_retries=2)
print("raises, retried", items(call.remote(attempts, 1, 4)), ray.get(attempts.count.remote()))
attempts = Attempts.remote()
print("too often", items(call.remote(attempts, 9, 4)), ray.get(attempts.count.remote()))
attempts = Attempts.remote()
call = raises.options(retry_exceptions=[KeyError], max_retries=2)
print("another error", items(call.remote(attempts, 1, 4)), ray.get(attempts.count.remote()))
attempts = Attempts.remote()
sizes = [(len(x), x[0]) if isinstance(x, bytes) else x for x in items(large.remote(attempts, 3))]
print("large", sizes, ray.get(attempts.count.remote()))
generator = dies_once.remote(Attempts.remote(), 3)
first = next(generator)
print("first", ray.get(first))
print("rest", items(generator))
try:
    next(generator)
except StopIteration:
    print("over")
print("done", type(generator.completed()).__name__, ray.get(generator.completed()))
