"""A detached actor outlives its job; others end with it."""
# cluster: 2 CPU

import time

import ray


@ray.remote(num_cpus=0)
class Keeper:
    def __init__(self):
        self.kept = []

    def keep(self, thing):
        self.kept.append(thing)
        return len(self.kept)

    def all(self):
        return self.kept


ray.init(namespace="shop")
keeper = Keeper.options(name="keeper", lifetime="detached").remote()
print(ray.get(keeper.keep.remote("one")))
temporary = Keeper.options(name="temporary").remote()
print(ray.get(temporary.keep.remote("x")))
first_job = ray.get_runtime_context().get_job_id()
ray.shutdown()
print(ray.is_initialized())

ray.init(namespace="shop")
print(ray.get_runtime_context().get_job_id() != first_job)
keeper = ray.get_actor("keeper")
print(ray.get(keeper.keep.remote("two")), ray.get(keeper.all.remote()))
for _ in range(100):
    try:
        ray.get_actor("temporary")
        time.sleep(0.1)
    except ValueError:
        print("temporary is gone")
        break
ray.shutdown()

ray.init()
try:
    ray.get_actor("keeper")
except ValueError:
    print("not in this namespace")
ray.kill(ray.get_actor("keeper", namespace="shop"))
try:
    Keeper.options(lifetime="forever").remote()
except ValueError as error:
    print("ValueError", error)
