"""Small helpers that programs lean on."""
# cluster: 2 CPU

import ray
from ray.util import inspect_serializability

ray.init()
print(
    ray.__version__.split(".")[0],
    ray.get_gpu_ids(),
    isinstance(ray.util.get_node_ip_address(), str),
)


@ray.remote
def slow_sum(xs):
    return sum(xs)


@ray.remote(num_cpus=0)
class Accumulator:
    def __init__(self):
        self.seen = []

    def add(self, x):
        self.seen.append(x)
        return len(self.seen)


print(ray.get(slow_sum.remote([ray.get(ray.put(1)), 2])))
handles = [Accumulator.options(name=f"acc{i}").remote() for i in range(2)]
ray.get([handle.add.remote(0) for handle in handles])
print(sorted(ray.util.list_named_actors()))
print(ray.get(ray.get_actor("acc1").add.remote(1)))
print(inspect_serializability(slow_sum, print_file=open("/dev/null", "w"))[0])
print(slow_sum.options(num_cpus=0).remote([1]).__class__.__name__)
print(hasattr(ray, "no_such_thing"), hasattr(ray, "remote"))
print(ray.nodes()[0]["Alive"], type(ray.get_runtime_context()).__name__)
