"""Tasks and actors that want one node."""
# cluster: head 2 CPU; 2 x 1 CPU

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()
ids = {n["NodeName"]: n["NodeID"] for n in ray.nodes()}
names = {node_id: name for name, node_id in ids.items()}


@ray.remote
def here():
    return names[ray.get_runtime_context().get_node_id()]


@ray.remote
class Actor:
    def here(self):
        return names[ray.get_runtime_context().get_node_id()]


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayError as error:
        return type(error).__name__


for name, node_id in sorted(ids.items()):
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = outcome(here.options(scheduling_strategy=strategy).remote())
    actor = Actor.options(scheduling_strategy=strategy).remote()
    print(name, task, outcome(actor.here.remote()))
nowhere = "ab" * 28
for soft in (True, False):
    strategy = NodeAffinitySchedulingStrategy(nowhere, soft=soft)
    task = outcome(here.options(scheduling_strategy=strategy).remote())
    actor = Actor.options(scheduling_strategy=strategy).remote()
    seen = outcome(actor.here.remote())
    print(soft, task in ids or task, seen in ids or seen)
big = NodeAffinitySchedulingStrategy(ids["n1"], soft=True)
print(outcome(here.options(scheduling_strategy=big, num_cpus=2).remote()))
strict = NodeAffinitySchedulingStrategy(ids["n1"], soft=False)
print(outcome(here.options(scheduling_strategy=strict, num_cpus=2).remote()))
try:
    NodeAffinitySchedulingStrategy("zz", soft=False)
    here.options(scheduling_strategy=NodeAffinitySchedulingStrategy("zz", soft=False)).remote()
except ValueError as error:
    print("ValueError", str(error).split(":")[0])
