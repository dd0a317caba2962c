"""SPREAD puts tasks and actors on the nodes in turn."""
# cluster: head 2 CPU; 2 x 2 CPU

import time

import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


def here():
    return names[ray.get_runtime_context().get_node_id()]


@ray.remote(scheduling_strategy="SPREAD")
def together():
    time.sleep(2)
    return here()


@ray.remote(scheduling_strategy="SPREAD")
class Actor:
    def here(self):
        return here()


for n in (3, 6):
    where = ray.get([together.remote() for _ in range(n)])
    print(n, sorted((name, where.count(name)) for name in set(where)))
    time.sleep(1)
actors = [Actor.options(num_cpus=1).remote() for _ in range(3)]
print(sorted(ray.get([actor.here.remote() for actor in actors])))
more = [Actor.options(num_cpus=1).remote() for _ in range(3)]
print(sorted(ray.get([actor.here.remote() for actor in more])))
