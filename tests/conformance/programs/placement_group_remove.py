"""Removing a group ends what runs in it and gives back what it held."""
# cluster: 2 CPU

import time

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init()
group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK")
ray.get(group.ready())
inside = PlacementGroupSchedulingStrategy(group)


def free_cpus(wanted):
    for _ in range(100):
        if ray.available_resources().get("CPU", 0) == wanted:
            break
        time.sleep(0.1)
    return ray.available_resources().get("CPU", 0)


@ray.remote(max_retries=0, scheduling_strategy=inside)
def sleep(seconds):
    time.sleep(seconds)


@ray.remote(num_cpus=1, scheduling_strategy=inside)
class Actor:
    def hello(self):
        return "hello"


def outcome(ref, timeout=30):
    try:
        return ray.get(ref, timeout=timeout)
    except ray.exceptions.RayError as error:
        return type(error).__name__


actor = Actor.remote()
print(outcome(actor.hello.remote()), "free", free_cpus(0))
running, queued = sleep.remote(60), sleep.remote(0)
time.sleep(2)
remove_placement_group(group)
print("actor", outcome(actor.hello.remote()))
print("running", outcome(running))
print("queued", outcome(queued))
print("later", outcome(sleep.remote(0), 3))
print("later actor", outcome(Actor.remote().hello.remote(), 3))
print(placement_group_table(group)["state"], "free", free_cpus(2))
remove_placement_group(group)
