"""ray.util.ActorPool."""
# cluster: 2 CPU

import ray
from ray.util import ActorPool

ray.init()


@ray.remote(num_cpus=0)
class Worker:
    def double(self, x):
        return 2 * x

    def fail(self, x):
        raise ValueError(x)


workers = [Worker.remote() for _ in range(2)]
pool = ActorPool(workers)
print(list(pool.map(lambda a, v: a.double.remote(v), range(5))))
print(sorted(pool.map_unordered(lambda a, v: a.double.remote(v), range(5))))
print(pool.has_next(), pool.has_free())
for i in range(3):
    pool.submit(lambda a, v: a.double.remote(v), i)
print(pool.has_next(), pool.has_free())
print(pool.get_next(), pool.get_next(timeout=5), pool.get_next_unordered(), pool.has_next())
try:
    pool.get_next()
except StopIteration as error:
    print(type(error).__name__, error)
idle = pool.pop_idle()
print(idle in workers, pool.has_free(), pool.pop_idle() is not None, pool.pop_idle())
pool.push(idle)
print(list(pool.map(lambda a, v: a.double.remote(v), "ab")))
try:
    pool.push(idle)
except ValueError as error:
    print("ValueError", str(error).split(".")[0])
results = pool.map(lambda a, v: a.fail.remote(v), [1])
try:
    next(results)
except ValueError as error:
    print(type(error).__name__, error.cause)
