"""A task goes where most of its large arguments lie."""
# cluster: head 2 CPU; 2 x 2 CPU

import numpy as np
import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


@ray.remote
def make(n):
    return np.ones(n)


@ray.remote
def where(*arrays):
    return names[ray.get_runtime_context().get_node_id()], [float(a.sum()) for a in arrays]


one = make.options(resources={"n1": 0.1}).remote(1_000_000)
two = make.options(resources={"n2": 0.1}).remote(200_000)
small = make.options(resources={"n1": 0.1}).remote(10)
ray.wait([one, two, small], num_returns=3, fetch_local=False)
print(ray.get(where.remote(one)))
print(ray.get(where.remote(two)))
print(ray.get(where.remote(two, one)))
print(ray.get(where.remote(small)))
print(ray.get(where.remote()))
print(ray.get(where.options(resources={"n2": 0.1}).remote(one)))
