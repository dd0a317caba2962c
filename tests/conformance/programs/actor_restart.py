"""max_restarts: an actor that crashed comes back with fresh state, so often."""
# cluster: 2 CPU

import os
import time

import ray

ray.init()


@ray.remote(num_cpus=0, max_restarts=2)
class Fragile:
    def __init__(self):
        self.calls = 0

    def call(self):
        self.calls += 1
        return self.calls, ray.get_runtime_context().was_current_actor_reconstructed

    def crash(self):
        os._exit(1)


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayActorError as error:
        return type(error).__name__


def patient(actor):
    while True:
        seen = outcome(actor.call.remote())
        if seen != "ActorUnavailableError":
            return seen
        time.sleep(0.1)


fragile = Fragile.remote()
print(outcome(fragile.call.remote()), outcome(fragile.call.remote()))
for _ in range(3):
    print("crash", outcome(fragile.crash.remote()))
    print("after", patient(fragile))
once = Fragile.options(max_restarts=0).remote()
print(outcome(once.call.remote()), outcome(once.crash.remote()), outcome(once.call.remote()))
