"""A group that does not fit waits: for others to go, or for a node to come."""
# cluster: head 2 CPU

import time

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)

ray.init()
first = placement_group([{"CPU": 2}])
print(first.wait(10), placement_group_table(first)["state"])
second = placement_group([{"CPU": 1}, {"CPU": 1}])
print(second.wait(1), placement_group_table(second)["state"])
remove_placement_group(first)
print(second.wait(20), placement_group_table(second)["state"])
large = placement_group([{"CPU": 2}, {"disk": 1}], strategy="STRICT_SPREAD")
print(large.wait(1), placement_group_table(large)["state"])
remove_placement_group(second)
try:
    ray.get(large.ready(), timeout=1)
except ray.exceptions.GetTimeoutError:
    print("not yet")
print('@add-node 1 CPU, {"disk": 2}')
print(large.wait(60), placement_group_table(large)["state"])
print(len({*placement_group_table(large)["bundles_to_node_id"].values()}))
never = placement_group([{"CPU": 100}])
print(never.wait(1))
remove_placement_group(never)
time.sleep(0.5)
print(placement_group_table(never)["state"])
