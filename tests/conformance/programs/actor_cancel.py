"""Cancelling calls of actors."""
# cluster: 2 CPU

import asyncio
import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Async:
    def __init__(self):
        self.notes = []

    async def wait(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.notes.append("cancelled")
            raise

    async def read(self):
        return self.notes


@ray.remote(num_cpus=0)
class Plain:
    def work(self, seconds):
        time.sleep(seconds)
        return "worked"


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayError as error:
        return type(error).__name__


actor = Async.remote()
ray.get(actor.read.remote())
ref = actor.wait.remote()
time.sleep(0.5)
ray.cancel(ref)
print("running async", outcome(ref), ray.get(actor.read.remote()))

plain = Plain.remote()
ray.get(plain.work.remote(0))
running, queued = plain.work.remote(1.5), plain.work.remote(0)
time.sleep(0.3)
ray.cancel(queued)
ray.cancel(running)
print("queued", outcome(queued))
print("running", outcome(running))
print("still alive", outcome(plain.work.remote(0)))
