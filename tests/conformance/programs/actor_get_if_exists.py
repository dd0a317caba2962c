"""get_if_exists: the first asks for a new actor, the others share it."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_cpus=0)
class Shared:
    def __init__(self, who):
        self.who = who
        self.calls = 0

    def call(self):
        self.calls += 1
        return self.who, self.calls


@ray.remote
def join(who):
    shared = Shared.options(name="shared", get_if_exists=True).remote(who)
    return ray.get(shared.call.remote())


first = Shared.options(name="shared", get_if_exists=True).remote("driver")
print(ray.get(first.call.remote()))
print(sorted(ray.get([join.remote(i) for i in range(3)])))
same = Shared.options(name="shared", get_if_exists=True).remote("late")
print(ray.get(same.call.remote()), first == same, first._actor_id == same._actor_id)
try:
    Shared.options(get_if_exists=True).remote("nameless")
except ValueError as error:
    print("ValueError", error)
