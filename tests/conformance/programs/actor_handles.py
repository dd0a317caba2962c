"""Handles are passed to tasks and to other actors."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_cpus=0)
class Sum:
    def __init__(self):
        self.total = 0
        self.friend = None

    def add(self, x):
        self.total += x
        return self.total

    def meet(self, friend):
        self.friend = friend
        return ray.get(friend.add.remote(100))

    def tell(self, x):
        return ray.get(self.friend.add.remote(x))

    def me(self):
        return ray.get_runtime_context().current_actor


@ray.remote
def add_many(handle, n):
    return [ray.get(handle.add.remote(1)) for _ in range(n)][-1] > 0


@ray.remote
def make():
    return Sum.options(name="made").remote()


first, second = Sum.remote(), Sum.remote()
print(ray.get([add_many.remote(first, 5) for _ in range(3)]), ray.get(first.add.remote(0)))
print(ray.get(first.meet.remote(second)), ray.get(first.tell.remote(1)))
myself = ray.get(first.me.remote())
print(type(myself).__name__, myself == first, ray.get(myself.add.remote(0)))
boxed = ray.get(ray.put({"handle": second}))["handle"]
print(ray.get(boxed.add.remote(0)))
made = ray.get(make.remote())
print(ray.get(made.add.remote(3)))
