"""Collectives between actors by ``ray.util.collective``, as its documentation shows them."""

import numpy as np
import ray
import ray.util.collective as col
from ray.util.collective.types import ReduceOp

ray.init(num_cpus=4)


@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank):
        self.rank = rank

    def setup(self, world_size):
        col.init_collective_group(world_size, self.rank, "gloo")
        return col.get_rank(), col.get_collective_group_size(), col.is_group_initialized("default")

    def reductions(self):
        x = np.full(4, self.rank + 1.0)
        col.allreduce(x)
        z = np.array([self.rank, 2.0])
        col.reduce(z, dst_rank=0, op=ReduceOp.MAX)
        parts = [np.full(2, float(i + self.rank)) for i in range(2)]
        r = np.zeros(2)
        col.reducescatter(r, parts)
        return x.tolist(), z.tolist(), r.tolist()

    def moves(self):
        y = np.arange(3.0) + self.rank
        col.broadcast(y, src_rank=1)
        got = [np.zeros(2) for _ in range(2)]
        col.allgather(got, np.array([self.rank, 7.0]))
        s = np.array([float(self.rank)])
        if self.rank == 0:
            col.send(np.array([42.0]), 1)
        else:
            col.recv(s, 0)
        col.barrier()
        return y.tolist(), [g.tolist() for g in got], s.tolist()

    def declared(self):
        x = np.ones(2)
        col.allreduce(x, "named")
        return x.tolist(), col.get_rank("named")

    def destroy(self):
        col.destroy_collective_group()
        return col.is_group_initialized("default"), col.get_rank()


workers = [Worker.remote(i) for i in range(2)]
print(ray.get([w.setup.remote(2) for w in workers]))
print(ray.get([w.reductions.remote() for w in workers]))
print(ray.get([w.moves.remote() for w in workers]))
col.create_collective_group(workers, 2, [1, 0], "gloo", "named")
print(ray.get([w.declared.remote() for w in workers]))
for call in (
    lambda: col.create_collective_group(workers, 2, [0, 1], "gloo", "named"),
    lambda: col.create_collective_group(workers, 2, [0, 0], "gloo", "other"),
    lambda: col.allreduce(np.ones(1)),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
print(ray.get([w.destroy.remote() for w in workers]))
