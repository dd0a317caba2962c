"""Placement groups one after the other, each waited for and removed."""
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


def one_by_one(count, bundles, strategy, name):
    start = time.perf_counter()
    for _ in range(count):
        group = placement_group(bundles, strategy=strategy)
        group.wait(30)
        remove_placement_group(group)
    row(name, start)


one_by_one(200, [{"CPU": 1}], "PACK", "one_bundle_200")
one_by_one(100, [{"CPU": 1}] * 4, "SPREAD", "spread_4_x100")
