"""Semaphore and barrier built from async actors."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote(num_cpus=0)
class Barrier:
    def __init__(self, parties):
        self.parties, self.arrived, self.rounds = parties, 0, 0
        self.event = asyncio.Event()

    async def wait(self):
        event = self.event
        self.arrived += 1
        if self.arrived == self.parties:
            self.arrived, self.rounds, self.event = 0, self.rounds + 1, asyncio.Event()
            event.set()
        await event.wait()
        return self.rounds


@ray.remote(num_cpus=0)
class Semaphore:
    def __init__(self, n):
        self.free, self.inside, self.most = asyncio.Semaphore(n), 0, 0

    async def acquire(self):
        await self.free.acquire()
        self.inside += 1
        self.most = max(self.most, self.inside)

    async def release(self):
        self.inside -= 1
        self.free.release()

    async def peak(self):
        return self.most


@ray.remote(num_cpus=0.5)
def party(barrier, rounds):
    return [ray.get(barrier.wait.remote()) for _ in range(rounds)]


@ray.remote
def guarded(semaphore):
    ray.get(semaphore.acquire.remote())
    ray.get(semaphore.release.remote())


barrier = Barrier.remote(3)
print(ray.get([party.remote(barrier, 4) for _ in range(3)]))
semaphore = Semaphore.remote(2)
ray.get([guarded.remote(semaphore) for _ in range(8)])
print(ray.get(semaphore.peak.remote()) <= 2)
