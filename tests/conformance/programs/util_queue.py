"""ray.util.queue."""
# cluster: 2 CPU

import ray
from ray.util.queue import Empty, Full, Queue

ray.init()
queue = Queue(maxsize=3)
queue.put(1)
queue.put_nowait(2)
print(queue.qsize(), queue.size(), queue.empty(), queue.full())
queue.put("three")
try:
    queue.put_nowait(4)
except Full as error:
    print(type(error).__name__)
try:
    queue.put(4, timeout=0.2)
except Full:
    print("still full")
print(queue.get(), queue.get(block=False), queue.get())
for attempt in (lambda: queue.get_nowait(), lambda: queue.get(timeout=0.2)):
    try:
        attempt()
    except Empty as error:
        print(type(error).__name__)
queue.put_nowait_batch([1, 2])
print(queue.get_nowait_batch(2), queue.empty())
for wrong in (lambda: queue.put_nowait_batch([1, 2, 3, 4]), lambda: queue.get_nowait_batch(1)):
    try:
        wrong()
    except (Full, Empty) as error:
        print(type(error).__name__)


@ray.remote
def produce(queue, n):
    for i in range(n):
        queue.put(i)


@ray.remote
def consume(queue, n):
    return [queue.get() for _ in range(n)]


produce.remote(queue, 8)
print(ray.get(consume.remote(queue, 8)))
endless = Queue(actor_options={"num_cpus": 0})
for i in range(50):
    endless.put(i)
print(endless.qsize(), endless.full())
queue.shutdown()
try:
    queue.put(1)
except AttributeError as error:
    print(type(error).__name__, error)
try:
    endless.get(timeout=-1)
except ValueError as error:
    print("ValueError", error)
