"""Tasks within the bundles of a group, and groups that wait for others to go."""
# cluster: 4 CPU; 4 CPU
# role: validation

import json
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=1)
def doze(seconds):
    time.sleep(seconds)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
ray.get([doze.remote(0.1) for _ in range(16)])

group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
group.wait(30)
inside = doze.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
ray.get([inside.remote(0.1) for _ in range(8)])
start = time.perf_counter()
ray.get([inside.remote(0.1) for _ in range(60)])
row("in_two_bundles_60_of_100ms", start)
remove_placement_group(group)

start = time.perf_counter()
waiting = [placement_group([{"CPU": 4}]) for _ in range(8)]
for group in waiting:
    group.wait(60)
    where = PlacementGroupSchedulingStrategy(group)
    ray.get(doze.options(scheduling_strategy=where).remote(0.2))
    remove_placement_group(group)
row("eight_groups_by_turns", start)
