"""ray.util.multiprocessing.Pool."""
# cluster: 2 CPU

import os

import ray
from ray.util.multiprocessing import Pool, TimeoutError

ray.init()


def square(x):
    return x * x


def add(x, y=10):
    return x + y


def fail(x):
    raise ValueError(f"bad {x}")


def started(value):
    os.environ["POOL_STARTED"] = value


def environment(_):
    return os.environ.get("POOL_STARTED")


with Pool(processes=2, initializer=started, initargs=("yes",)) as pool:
    print(pool.map(square, range(6)))
    print(pool.starmap(add, [(1, 2), (3, 4)]), pool.apply(add, (1,), {"y": 5}))
    print(list(pool.imap(square, range(5), chunksize=2)))
    print(sorted(pool.imap_unordered(square, range(5))))
    result = pool.apply_async(square, (7,))
    result.wait(timeout=10)
    print(result.get(timeout=10), result.ready(), result.successful())
    print(pool.map_async(square, [1, 2]).get(), set(pool.map(environment, range(4))))
    try:
        pool.map(fail, [1])
    except ValueError as error:
        print(type(error).__name__, str(error).splitlines()[-1])
    seen = []
    pool.apply_async(square, (3,), callback=seen.append).get()
    pool.close()
    try:
        pool.map(square, [1])
    except ValueError as error:
        print("ValueError", error)
    pool.join()
    print(TimeoutError.__name__, issubclass(TimeoutError, Exception))
