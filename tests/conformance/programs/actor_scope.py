"""An actor ends when the last handle to it is gone."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=1)
class Holder:
    def hello(self):
        return "hello"

    def slow(self):
        time.sleep(0.5)
        return "finished"


def free_cpus(wanted):
    for _ in range(200):
        if ray.available_resources().get("CPU", 0) == wanted:
            return wanted
        time.sleep(0.1)
    return ray.available_resources().get("CPU", 0)


holder = Holder.remote()
print(ray.get(holder.hello.remote()), free_cpus(1))
copy = holder
del holder
print(ray.get(copy.hello.remote()))
del copy
print("free", free_cpus(2))
print(ray.get(Holder.remote().slow.remote()))
print("free", free_cpus(2))
named = Holder.options(name="named").remote()
ray.get(named.hello.remote())
del named
print("free", free_cpus(2))
try:
    ray.get_actor("named")
    print("still named")
except ValueError:
    print("name is free")
