"""What actors hold: nothing by default, what was asked for otherwise."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote
class Plain:
    def resources(self):
        return ray.get_runtime_context().get_assigned_resources()


def free_cpus(wanted):
    for _ in range(100):
        if ray.available_resources().get("CPU", 0) == wanted:
            break
        time.sleep(0.1)
    return ray.available_resources().get("CPU", 0)


crowd = [Plain.remote() for _ in range(4)]
print(ray.get([actor.resources.remote() for actor in crowd]))
print("free", free_cpus(2))
holders = [Plain.options(num_cpus=1).remote() for _ in range(2)]
print(ray.get([actor.resources.remote() for actor in holders]))
print("free", free_cpus(0))
third = Plain.options(num_cpus=1).remote()
pending = third.resources.remote()
print("third", len(ray.wait([pending], timeout=1)[0]))
late = Plain.remote().resources.remote()
print("default", len(ray.wait([late], timeout=1)[0]))
ray.kill(holders[0])
print("third", ray.get(pending, timeout=30))
ray.kill(third)
print("default", ray.get(late, timeout=30))
