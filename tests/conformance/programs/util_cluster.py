"""Resources and nodes of the cluster, as a program sees them."""
# cluster: head 2 CPU; 1 x 4 CPU, 4 GPU, 1000 MiB memory, {"disk": 3}

import time

import ray

ray.init()


def plain(resources):
    hidden = ("node:", "object_store_memory", "memory", "n0", "n1")
    return {k: v for k, v in sorted(resources.items()) if not k.startswith(hidden)}


print(plain(ray.cluster_resources()))
print(plain(ray.available_resources()))


@ray.remote(num_cpus=3, num_gpus=0.5, resources={"disk": 1})
class Holder:
    def ready(self):
        return True


holder = Holder.remote()
ray.get(holder.ready.remote())
time.sleep(1)
print(plain(ray.available_resources()), plain(ray.cluster_resources())["CPU"])
for node in sorted(ray.nodes(), key=lambda n: n["NodeName"]):
    print(node["NodeName"], node["Alive"], plain(node["Resources"]), len(node["NodeID"]))
    print(sorted(node))
print(sum(r.startswith("node:") for r in ray.cluster_resources()))
print("node:__internal_head__" in ray.cluster_resources())
print(ray.is_initialized(), len(ray.get_runtime_context().get_node_id()))
