"""Things that cannot be sent."""
# cluster: 2 CPU

import threading

import ray

ray.init()
lock = threading.Lock()


@ray.remote
def take(x):
    return type(x).__name__


@ray.remote
def give():
    return threading.Lock()


@ray.remote
def closes_over():
    return lock


for label, attempt in (
    ("argument", lambda: take.remote(lock)),
    ("put", lambda: ray.put(lock)),
    ("closure", lambda: closes_over.remote()),
):
    try:
        attempt()
        print(label, "accepted")
    except TypeError as error:
        print(label, type(error).__name__, str(error).splitlines()[0][:60])
try:
    ray.get(give.remote())
except Exception as error:
    print("return", type(error).__name__, isinstance(error, TypeError))
print(ray.get(take.remote(print)), ray.get(take.remote(lambda: 1)))
