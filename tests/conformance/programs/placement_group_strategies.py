"""Where the four strategies put three bundles."""
# cluster: head 2 CPU; 2 x 2 CPU

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


def nodes_of(group):
    table = placement_group_table(group)
    return [names[node] for _, node in sorted(table["bundles_to_node_id"].items())]


for strategy, bundles in (
    ("PACK", 2), ("PACK", 3), ("SPREAD", 2), ("SPREAD", 3), ("SPREAD", 5),
    ("STRICT_PACK", 2), ("STRICT_SPREAD", 3), ("STRICT_PACK", 3), ("STRICT_SPREAD", 4),
):  # fmt: skip
    group = placement_group([{"CPU": 1}] * bundles, strategy=strategy)
    created = group.wait(10 if bundles not in (3, 4) or strategy[:6] != "STRICT" else 2)
    where = nodes_of(group) if created else []
    counts = sorted(where.count(name) for name in set(where))
    print(strategy, bundles, created, counts, placement_group_table(group)["state"])
    remove_placement_group(group)
try:
    placement_group([{"CPU": 1}], strategy="ANYHOW")
except ValueError as error:
    print("ValueError", str(error).splitlines()[0].split(". ")[0])
