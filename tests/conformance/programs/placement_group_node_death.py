"""Bundles of a dead node are placed again; the others stay."""
# cluster: head 0 CPU; 3 x 2 CPU

import time

import ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


def nodes_of(group):
    table = placement_group_table(group)
    return [names.get(node) for _, node in sorted(table["bundles_to_node_id"].items())]


@ray.remote(num_cpus=1, max_restarts=1)
class Actor:
    def where(self):
        return names[ray.get_runtime_context().get_node_id()]


group = placement_group([{"CPU": 1}] * 3, strategy="SPREAD")
print(group.wait(30), sorted(nodes_of(group)))
before = nodes_of(group)
lost = before.index("n1")
inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=lost)
actor = Actor.options(scheduling_strategy=inside).remote()
print(ray.get(actor.where.remote()))
print("@kill-node n1")
while "n1" in {n["NodeName"] for n in ray.nodes() if n["Alive"]}:
    time.sleep(0.1)
while placement_group_table(group)["state"] != "CREATED" or "n1" in nodes_of(group):
    time.sleep(0.1)
after = nodes_of(group)
print([i for i in range(3) if before[i] != after[i]] == [lost], set(after) <= {"n2", "n3"})
while True:
    try:
        print(ray.get(actor.where.remote(), timeout=30) == after[lost])
        break
    except ray.exceptions.ActorUnavailableError:
        time.sleep(0.1)
