"""What no node can do waits until one joins that can."""
# cluster: head 1 CPU

import ray

ray.init()


@ray.remote
def here():
    return sorted(ray.get_runtime_context().get_assigned_resources().items())


@ray.remote(resources={"lab": 1})
class Actor:
    def here(self):
        return sorted(ray.get_runtime_context().get_assigned_resources())


task = here.options(resources={"lab": 0.5}).remote()
wide = here.options(num_cpus=4).remote()
actor = Actor.remote()
call = actor.here.remote()
print(len(ray.wait([task, wide, call], num_returns=3, timeout=1.5)[0]))
print(ray.get(here.remote()))
print('@add-node 5 CPU, {"lab": 2}')
print(ray.get(task, timeout=60), ray.get(wide, timeout=60), ray.get(call, timeout=60))
print(len(ray.nodes()), ray.cluster_resources()["CPU"], ray.cluster_resources()["lab"])
