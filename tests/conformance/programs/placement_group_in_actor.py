"""Placement groups that an actor makes, is in, and hands to its children."""
# cluster: head 4 CPU

import time

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init()


def here():
    group = get_current_placement_group()
    return group.id.hex() if group else None


@ray.remote(num_cpus=1)
def child():
    return here()


@ray.remote(num_cpus=0)
def grandparent():
    return here(), ray.get(child.remote())


@ray.remote(num_cpus=0)
class Maker:
    def __init__(self):
        self.group = None

    def make(self, bundles):
        self.group = placement_group(bundles)
        ray.get(self.group.ready())
        return self.group

    def run(self, n):
        inside = PlacementGroupSchedulingStrategy(self.group)
        found = ray.get([child.options(scheduling_strategy=inside).remote() for _ in range(n)])
        return [name == self.group.id.hex() for name in found]

    def state(self):
        return placement_group_table(self.group)["state"]

    def where(self):
        return here(), ray.get(child.remote())

    def escape(self):
        return ray.get(child.options(scheduling_strategy="DEFAULT").remote())


def free(wanted):
    for _ in range(100):
        if ray.available_resources().get("CPU", 0) == wanted:
            break
        time.sleep(0.1)
    return ray.available_resources().get("CPU", 0)


maker = Maker.remote()
group = ray.get(maker.make.remote([{"CPU": 1}, {"CPU": 1}]))
print(type(group).__name__, group.bundle_count, group.bundle_specs, "free", free(2))
print("children", ray.get(maker.run.remote(4)), ray.get(maker.state.remote()))
print("maker itself", ray.get(maker.where.remote()))
strategy = PlacementGroupSchedulingStrategy(group)
print(
    "from the driver",
    ray.get(child.options(scheduling_strategy=strategy).remote()) == group.id.hex(),
)

capture = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
inside = Maker.options(num_cpus=1, scheduling_strategy=capture).remote()
print("captured", [name == group.id.hex() for name in ray.get(inside.where.remote())])
print("escaped", ray.get(inside.escape.remote()))
ray.kill(inside)
plain = Maker.options(num_cpus=1, scheduling_strategy=strategy).remote()
print("not captured", [name == group.id.hex() for name in ray.get(plain.where.remote())])
ray.kill(plain)
call = grandparent.options(scheduling_strategy=capture)
print("captured task", [name == group.id.hex() for name in ray.get(call.remote())])
call = grandparent.options(scheduling_strategy=strategy)
print("task", [name == group.id.hex() if name else name for name in ray.get(call.remote())])
ray.kill(maker)
print("maker gone: free", free(4), placement_group_table(group)["state"])
other = placement_group([{"CPU": 4}])
print(other.wait(10), "free", free(0))
remove_placement_group(other)
print("free", free(4))
