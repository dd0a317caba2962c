"""Tasks and actors in chosen bundles of a group."""
# cluster: head 2 CPU; 2 x 2 CPU

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}
group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
print(type(ray.get(group.ready())).__name__, group.bundle_count, group.bundle_specs)
where = {i: names[n] for i, n in placement_group_table(group)["bundles_to_node_id"].items()}
print(len(set(where.values())))


def inside(index, **more):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index, **more)


@ray.remote
def here():
    current = get_current_placement_group()
    return names[ray.get_runtime_context().get_node_id()], current is not None and current == group


@ray.remote
class Actor:
    def here(self):
        return ray.get(here.remote()), get_current_placement_group() == group


for index in (0, 1):
    node, in_group = ray.get(here.options(scheduling_strategy=inside(index)).remote())
    print(index, node == where[index], in_group)
any_bundle = ray.get([here.options(scheduling_strategy=inside(-1)).remote() for _ in range(4)])
print({node for node, _ in any_bundle} <= set(where.values()))
actor = Actor.options(scheduling_strategy=inside(1), num_cpus=1).remote()
print(ray.get(actor.here.remote())[1])
print(ray.get(here.remote())[1], get_current_placement_group())
capturing = inside(1, placement_group_capture_child_tasks=True)
actor = Actor.options(scheduling_strategy=capturing, num_cpus=0).remote()
(node, captured), _ = ray.get(actor.here.remote())
print(node in where.values(), captured)
for wrong in (lambda: inside(2), lambda: inside(-2)):
    try:
        here.options(scheduling_strategy=wrong()).remote()
    except ValueError as error:
        print("ValueError", str(error).split(". ")[0][:80])
try:
    here.options(scheduling_strategy=inside(0), num_cpus=3).remote()
except ValueError as error:
    print("ValueError", str(error).split(". ")[0].split("{")[0])
