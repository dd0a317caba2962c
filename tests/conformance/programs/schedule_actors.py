"""Default placement of actors with and without resources."""
# cluster: head 1 CPU; 2 x 1 CPU

import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


@ray.remote
class Actor:
    def here(self):
        return names[ray.get_runtime_context().get_node_id()]


first = Actor.options(num_cpus=1).remote()
print(ray.get(first.here.remote()))
rest = [Actor.options(num_cpus=1).remote() for _ in range(2)]
print(sorted(ray.get([actor.here.remote() for actor in rest])))
fourth = Actor.options(num_cpus=1).remote()
call = fourth.here.remote()
print(len(ray.wait([call], timeout=1)[0]))
gone = ray.get(rest[0].here.remote())
ray.kill(rest[0])
print(ray.get(call, timeout=30) == gone)
everywhere = [Actor.options(num_cpus=0, resources={n: 0.1}).remote() for n in ("n0", "n1", "n2")]
print(ray.get([actor.here.remote() for actor in everywhere]))
