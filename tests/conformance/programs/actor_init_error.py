"""An exception in __init__ makes every call fail, and says why."""
# cluster: 2 CPU

import os

import ray

ray.init()


@ray.remote(num_cpus=0)
class Broken:
    def __init__(self, how):
        if how == "raise":
            raise ValueError("bad start")
        if how == "exit":
            os._exit(1)

    def hello(self):
        return "hello"


broken = Broken.remote("raise")
for _ in range(2):
    try:
        ray.get(broken.hello.remote())
    except ray.exceptions.RayActorError as error:
        print(type(error).__name__, isinstance(error, ValueError))
        print("bad start" in str(error), str(error).split(":")[0].splitlines()[0])
exited = Broken.remote("exit")
try:
    ray.get(exited.hello.remote())
except ray.exceptions.RayError as error:
    print(type(error).__name__)
print(ray.get(Broken.remote("well").hello.remote()))
bad_argument = Broken.remote(ray.remote(lambda: 1 / 0).remote())
try:
    ray.get(bad_argument.hello.remote())
except Exception as error:
    print(type(error).__name__)
try:
    Broken.remote()
except TypeError as error:
    print("TypeError", error)
