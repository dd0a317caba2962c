"""One large read-only table, many tasks on several nodes."""
# cluster: head 1 CPU; 2 x 1 CPU

import numpy as np
import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}
table = ray.put(np.arange(500_000, dtype=np.int64))


@ray.remote
def look(table, start, stop):
    return names[ray.get_runtime_context().get_node_id()], int(table[start:stop].sum())


@ray.remote(num_cpus=0)
class Reader:
    def __init__(self, box):
        self.table = ray.get(box[0])

    def at(self, i):
        return int(self.table[i]), self.table.flags.writeable


refs = [look.options(resources={f"n{i}": 0.1}).remote(table, i, i + 10) for i in range(3)]
print(ray.get(refs))
readers = [Reader.options(resources={f"n{i}": 0.1}).remote([table]) for i in range(3)]
print(ray.get([reader.at.remote(-1) for reader in readers]))
del table
print(ray.get(readers[1].at.remote(7)))
