"""ray.experimental.get_object_locations: which nodes have an object, asked by owner and borrower."""
# cluster: head 2 CPU; 2 x 2 CPU

import time

import numpy as np
import ray
from ray.experimental import get_local_object_locations, get_object_locations

ray.init()
NAMES = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
MIB = 2**20


@ray.remote(resources={"n1": 0.01})
def there(n):
    return np.ones(n, dtype=np.uint8)


@ray.remote(num_cpus=0)
def slow():
    time.sleep(30)


@ray.remote(num_cpus=0)
def fails():
    raise ValueError


@ray.remote(resources={"n1": 0.01})
def look(refs):
    return said(ray.experimental.get_object_locations(refs))


def said(found):
    """By reference in order: nodes, size in MiB (small: in bytes), whether it went to disk."""
    rows = []
    for where in found.values():
        assert list(where) == ["node_ids", "object_size", "did_spill"]
        size = where["object_size"]
        size = size // MIB * MIB if size and size > MIB else size
        nodes = sorted(NAMES.get(n, n) for n in where["node_ids"])
        rows.append((nodes, size, where["did_spill"]))
    return rows


small, large = ray.put(1), ray.put(np.ones(MIB, dtype=np.uint8))
away, value, pending, error = there.remote(2 * MIB), there.remote(10), slow.remote(), fails.remote()
ray.wait([away, value, error], num_returns=3, fetch_local=False)
time.sleep(1)  # where it is comes after that it is
refs = [small, large, away, value, pending]
print(said(get_object_locations(refs)), list(get_object_locations(refs)) == refs)
print(said(get_local_object_locations(refs)), list(get_local_object_locations(refs)) == refs)
print(get_object_locations([error])[error]["node_ids"])
print(ray.get(look.remote([small, large])), get_object_locations([]))
ray.get(away)
for _ in range(50):
    if len(get_object_locations([away])[away]["node_ids"]) == 2:
        break
    time.sleep(0.1)
print(said(get_object_locations([away, away], timeout_ms=5000)))

many = [ray.put(np.ones(20 * MIB, dtype=np.uint8)) for _ in range(8)]
for _ in range(50):
    if any(where["did_spill"] for where in get_object_locations(many).values()):
        break
    time.sleep(0.1)
print({tuple(nodes) for nodes, _, _ in said(get_object_locations(many))})
print(any(spilled for _, _, spilled in said(get_object_locations(many))))

ray.shutdown()
try:
    get_object_locations(refs)
except RuntimeError as unconnected:
    print(unconnected)
