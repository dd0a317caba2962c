"""Placement groups made, waited for and removed: one bundle, packed, spread."""
# cluster: 8 CPU; 8 CPU
# role: validation

import json
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


ray.init()


def groups(count, bundles, strategy, name):
    start = time.perf_counter()
    made = [placement_group(bundles, strategy=strategy) for _ in range(count)]
    ray.get([group.ready() for group in made])
    for group in made:
        remove_placement_group(group)
    row(name, start)


groups(4, [{"CPU": 0.01}], "PACK", "first_4")
groups(40, [{"CPU": 0.1}], "PACK", "one_bundle_40")
groups(20, [{"CPU": 0.05}] * 4, "PACK", "pack_4_x20")
groups(20, [{"CPU": 0.05}] * 2, "STRICT_SPREAD", "strict_spread_2_x20")
