"""Cancelling calls of actors: queued, running, asynchronous, with children."""
# cluster: 2 CPU

import asyncio
import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Log:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def all(self):
        return self.lines


@ray.remote(num_cpus=0)
def child(log, seconds):
    until = time.time() + seconds
    while time.time() < until:
        time.sleep(0.05)
    ray.get(log.add.remote("child ended"))


@ray.remote(num_cpus=0)
class Sync:
    def nap(self, seconds):
        until = time.time() + seconds
        while time.time() < until:
            time.sleep(0.05)
        return "rested"

    def looks(self):
        context = ray.get_runtime_context()
        for _ in range(100):
            if context.is_canceled():
                return "saw it"
            time.sleep(0.1)
        return "never"

    def parent(self, log):
        return ray.get(child.remote(log, 30))


@ray.remote(num_cpus=0)
class Async:
    def __init__(self, log):
        self.log = log

    async def nap(self, name, seconds):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await self.log.add.remote(f"{name} cleans up")
            raise
        return "rested"

    async def stubborn(self):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "no"

    async def waits(self, log):
        await child.remote(log, 30)

    async def hello(self):
        return "hello"


def outcome(ref):
    try:
        return ray.get(ref, timeout=20)
    except Exception as error:
        return type(error).__name__


log = Log.remote()
sync = Sync.remote()
print(outcome(sync.nap.remote(0)))
running, queued, last = sync.nap.remote(3), sync.nap.remote(0), sync.nap.remote(0)
time.sleep(1)
ray.cancel(queued)
print("queued", outcome(queued))
ray.cancel(running)
print("running", outcome(running))
print("last", outcome(last))
try:
    ray.cancel(last, force=True)
except ValueError as error:
    print("ValueError", str(error)[:40])
looks = sync.looks.remote()
time.sleep(1)
ray.cancel(looks)
print("looks", outcome(looks))
finished = sync.nap.remote(0)
ray.get(finished)
ray.cancel(finished)
print("finished", outcome(finished))
parent = sync.parent.remote(log)
time.sleep(2)
ray.cancel(parent)
try:
    ray.get(parent)
except ray.exceptions.TaskCancelledError:
    print("parent cancelled")
print("sync lives", outcome(sync.nap.remote(0)))

actor = Async.remote(log)
print(outcome(actor.hello.remote()))
one, two = actor.nap.remote("one", 30), actor.nap.remote("two", 2)
time.sleep(1)
ray.cancel(one)
print("one", outcome(one), "two", outcome(two))
stubborn = actor.stubborn.remote()
time.sleep(1)
ray.cancel(stubborn)
print("stubborn", outcome(stubborn))
waits = actor.waits.remote(log)
time.sleep(2)
ray.cancel(waits)
print("waits", outcome(waits))
print("async lives", outcome(actor.hello.remote()))
print(outcome(log.all.remote()))
