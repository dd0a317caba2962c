"""max_calls: a worker process ends after so many calls of the function."""
# cluster: 2 CPU

import os

import ray

ray.init()


@ray.remote(max_calls=2)
def short_lived():
    return os.getpid()


@ray.remote
def long_lived():
    return os.getpid()


pids = [ray.get(short_lived.remote()) for _ in range(6)]
print("processes", len(set(pids)), pids[0] == pids[1], pids[1] == pids[2])
pids = [ray.get(long_lived.remote()) for _ in range(6)]
print("processes", len(set(pids)))


@ray.remote(max_calls=1)
def once(x):
    return x, os.getpid()


out = ray.get([once.remote(i) for i in range(4)])
print([x for x, _ in out], len({pid for _, pid in out}))
