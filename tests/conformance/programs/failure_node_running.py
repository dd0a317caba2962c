"""A node dies under a running task and under an actor that may restart."""
# cluster: head 1 CPU; 2 x 2 CPU, {"side": 2}

import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()
ids = {n["NodeName"]: n["NodeID"] for n in ray.nodes()}
names = {node_id: name for name, node_id in ids.items()}
at_n1 = NodeAffinitySchedulingStrategy(ids["n1"], soft=True)


def here():
    return names[ray.get_runtime_context().get_node_id()]


@ray.remote(num_cpus=0, resources={"n0": 0.1})
class Flag:
    def __init__(self):
        self.up = False
        self.seen = []

    def see(self, where):
        self.seen.append(where)
        return self.up

    def all(self):
        return sorted(self.seen)

    def set(self):
        self.up = True


@ray.remote(resources={"side": 0.1}, scheduling_strategy=at_n1)
def long(flag):
    while not ray.get(flag.see.remote(here())):
        time.sleep(0.2)
    return here()


@ray.remote(num_cpus=0, resources={"side": 1}, max_restarts=1, scheduling_strategy=at_n1)
class Mover:
    def where(self):
        return here()


@ray.remote(num_cpus=0, resources={"side": 0.1}, scheduling_strategy=at_n1)
class Stayer:
    def where(self):
        return here()


def outcome(ref):
    try:
        return ray.get(ref, timeout=60)
    except ray.exceptions.RayError as error:
        return type(error).__name__


flag = Flag.remote()
mover, stayer = Mover.remote(), Stayer.remote()
print(outcome(mover.where.remote()), outcome(stayer.where.remote()))
retried, not_retried = long.remote(flag), long.options(max_retries=0).remote(flag)
while ray.get(flag.all.remote()).count("n1") < 4:
    time.sleep(0.1)
print("@kill-node n1")
while ids["n1"] in {n["NodeID"] for n in ray.nodes() if n["Alive"]}:
    time.sleep(0.1)
ray.get(flag.set.remote())
print("retried", outcome(retried))
print("not retried", outcome(not_retried))
print("stayer", outcome(stayer.where.remote()))
while True:
    seen = outcome(mover.where.remote())
    if seen != "ActorUnavailableError":
        break
    time.sleep(0.2)
print("mover", seen)
hard = NodeAffinitySchedulingStrategy(ids["n1"], soft=False)
print("hard", outcome(long.options(scheduling_strategy=hard).remote(flag)))
print("hard actor", outcome(Stayer.options(scheduling_strategy=hard).remote().where.remote()))
