"""The default strategy: near, until half of the node is used; GPU nodes last."""
# cluster: head 2 CPU; 1 x 2 CPU, 1 GPU; 1 x 2 CPU

import time

import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


def here():
    return names[ray.get_runtime_context().get_node_id()]


@ray.remote
def together():
    time.sleep(1)
    return here()


def counts(n, **options):
    where = ray.get([together.options(**options).remote() for _ in range(n)])
    time.sleep(0.5)
    return sorted((name, where.count(name)) for name in set(where))


print("one at a time", [counts(1)[0][0] for _ in range(3)])
print("two", counts(2))
print("four", counts(4))
print("six", counts(6))
print("with a GPU", counts(1, num_gpus=1))
print("two CPUs each", counts(3, num_cpus=2))
