"""Names and namespaces of actors."""
# cluster: 2 CPU

import ray

ray.init(namespace="here")


@ray.remote(num_cpus=0)
class Box:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


@ray.remote
def look(name):
    return ray.get(ray.get_actor(name).get.remote())


box = Box.options(name="box").remote(1)
print(ray.get(ray.get_actor("box").get.remote()), ray.get(look.remote("box")))
try:
    Box.options(name="box").remote(2)
except ValueError as error:
    print("ValueError", str(error).split(".")[0])
other = Box.options(name="box", namespace="there").remote(3)
print(ray.get(ray.get_actor("box", namespace="there").get.remote()))
print(ray.util.list_named_actors())
both = ray.util.list_named_actors(all_namespaces=True)
print(sorted((entry["namespace"], entry["name"]) for entry in both))
try:
    ray.get_actor("nobody")
except ValueError as error:
    print("ValueError", str(error).split(".")[0])
for wrong in ({"name": ""}, {"name": 3}, {"namespace": ""}):
    try:
        Box.options(**wrong).remote(0)
        print(wrong, "accepted")
    except Exception as error:
        print(wrong, type(error).__name__, str(error).splitlines()[0])
ray.kill(box)
try:
    ray.get_actor("box")
    print("still there")
except ValueError:
    print("gone")
again = Box.options(name="box").remote(4)
print(ray.get(look.remote("box")))
print(ray.get_runtime_context().namespace)
