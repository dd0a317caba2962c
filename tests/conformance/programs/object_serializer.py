"""Classes that say how they travel."""
# cluster: 2 CPU

import threading

import ray
from ray.util import deregister_serializer, register_serializer

ray.init()


class Reduced:
    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()

    def __reduce__(self):
        return Reduced, (self.path + "+",)


class Stateful:
    def __init__(self):
        self.kept, self.lost = 1, threading.Lock()

    def __getstate__(self):
        return {"kept": self.kept + 1}


class Plain:
    def __init__(self, lock):
        self.lock = lock


@ray.remote
def path(thing):
    return thing.path


print(ray.get(path.remote(Reduced("a"))), ray.get(ray.put(Reduced("b"))).path)
print(vars(ray.get(ray.put(Stateful()))))
register_serializer(Plain, serializer=lambda p: "locked", deserializer=lambda text: text.upper())
print(ray.get(ray.put(Plain(threading.Lock()))))
deregister_serializer(Plain)
try:
    ray.put(Plain(threading.Lock()))
except TypeError:
    print("TypeError")
