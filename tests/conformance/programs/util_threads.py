"""Threads of a program, in the driver and in an actor: locks, events, queues, executors."""
# cluster: 4 CPU

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import ray

ray.init()
BEGAN = time.time()


def told(*what):
    """With the time in halves of a second."""
    print(round((time.time() - BEGAN) * 2) / 2, *what)


def work(seconds):
    time.sleep(seconds)
    told("slept", seconds, threading.current_thread().name)


@ray.remote(num_cpus=0)
def square(number):
    time.sleep(0.2)
    return number * number


@ray.remote(max_concurrency=4)
class Counter:
    """Has a thread of its own beside its methods."""

    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0
        self.thread = threading.Thread(target=self.tick, daemon=True)

    def start(self):
        self.thread.start()
        return self.thread.is_alive(), self.thread.daemon

    def tick(self):
        while True:
            time.sleep(1)
            with self.lock:
                self.count += 100

    def add(self):
        with self.lock:
            seen = self.count
            time.sleep(0.05)
            self.count = seen + 1

    def get(self):
        return self.count


ray.get(square.remote(0))
BEGAN = time.time()
threads = [threading.Thread(target=work, args=(n,), name=f"T{n}") for n in (1.5, 0.5, 1)]
for thread in threads:
    thread.start()
told([thread.is_alive() for thread in threads])
threads[0].join(timeout=0.1)
told(threads[0].is_alive())
for thread in threads:
    thread.join()
told([thread.is_alive() for thread in threads])

with ThreadPoolExecutor(max_workers=4) as pool:
    print(list(pool.map(lambda number: ray.get(square.remote(number)), range(6))))
    done = as_completed([pool.submit(lambda s=s: (time.sleep(s), s)[1]) for s in (1, 0.5)])
    print([future.result() for future in done])
    failing = pool.submit(lambda: 1 // 0)
    print(type(failing.exception()).__name__)

BEGAN = time.time()
items = queue.Queue(maxsize=1)


def produce():
    for number in range(4):
        items.put(number)
        time.sleep(0.5)
    items.put(None)


threading.Thread(target=produce).start()
print(list(iter(items.get, None)))
try:
    items.get(timeout=1)
except queue.Empty:
    told("empty")

event = threading.Event()
threading.Timer(1, event.set).start()
told(event.wait(0.5), event.wait(5))

lock, total = threading.Lock(), 0


def add():
    global total  # noqa: PLW0603  (a lock is for what is shared)
    for _ in range(5):
        with lock:
            seen = total
            time.sleep(0.01)
            total = seen + 1


threads = [threading.Thread(target=add) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("total", total)
print(lock.acquire(), lock.acquire(timeout=0.2), lock.acquire(blocking=False), lock.locked())
again = threading.RLock()
with again, again:
    print("twice")
try:
    again.release()
except RuntimeError as error:
    print(error)

ready = threading.Condition()
words = []


def wait_for_words():
    with ready:
        ready.wait_for(lambda: words)


threads = [threading.Thread(target=wait_for_words) for _ in range(2)]
for thread in threads:
    thread.start()
time.sleep(0.2)
print([thread.is_alive() for thread in threads])
with ready:
    words.append("go")
    ready.notify_all()
for thread in threads:
    thread.join()
barrier = threading.Barrier(2)
threading.Thread(target=barrier.wait).start()
print(barrier.wait() in (0, 1))

thread = threading.Thread(target=print)
thread.run = lambda: print("run")
thread.start()
thread.join()
for wrong in (thread.start, threading.Thread().join):
    try:
        wrong()
    except RuntimeError as error:
        print(error)

counter = Counter.remote()
ray.get([counter.add.remote() for _ in range(4)])
print(ray.get(counter.get.remote()), ray.get(counter.start.remote()))
time.sleep(2.5)
print(ray.get(counter.get.remote()))
threading.Thread(target=lambda: (time.sleep(0.5), print("after the end"))).start()
print("end")
