"""Named actors in several namespaces."""
# cluster: 2 CPU

import time

import ray

ray.init(namespace="home")


@ray.remote(num_cpus=0)
class Named:
    def __init__(self, word="new"):
        self.word = word

    def say(self):
        return self.word

    def where(self):
        return ray.get_runtime_context().namespace

    def create(self, name):
        self.made = Named.options(name=name).remote("made by an actor")
        return ray.get(self.made.say.remote())

    def find(self, name, namespace=None):
        return ray.get(ray.get_actor(name, namespace).say.remote())


def attempt(fn, *args, **kwargs):
    try:
        found = fn(*args, **kwargs)
        return ray.get(found.say.remote())
    except Exception as error:
        return type(error).__name__, str(error).split(".")[0][:70]


one = Named.options(name="a").remote("home a")
two = Named.options(name="a", namespace="away").remote("away a")
print(attempt(ray.get_actor, "a"), attempt(ray.get_actor, "a", "away"))
print(attempt(ray.get_actor, "a", namespace="nowhere"))
print(attempt(Named.options(name="a").remote, "second"))
print(attempt(Named.options(name="a", get_if_exists=True).remote, "second"))
print(attempt(Named.options(name="a", namespace="away", get_if_exists=True).remote, "second"))
print(attempt(Named.options(name="b", get_if_exists=True).remote, "fresh"))
time.sleep(1)
third = Named.options(name="b", get_if_exists=True).remote("fresh b")
print(ray.get([one.where.remote(), two.where.remote()]))
print(
    ray.get(two.create.remote("c")),
    attempt(ray.get_actor, "c"),
    attempt(ray.get_actor, "c", "away"),
)
print(ray.get(two.find.remote("a")), ray.get(one.find.remote("a", "away")))
print(sorted(ray.util.list_named_actors()))
every = ray.util.list_named_actors(all_namespaces=True)
print(sorted((e["namespace"], e["name"]) for e in every))
ray.kill(one)
time.sleep(1)
print(attempt(ray.get_actor, "a"), attempt(ray.get_actor, "a", "away"))
again = Named.options(name="a").remote("another a")
print(attempt(ray.get_actor, "a"))
for wrong in ("", 3, None):
    print(attempt(lambda name=wrong: Named.options(name=name).remote()))
for wrong in ("", 3):
    print(attempt(lambda space=wrong: Named.options(name="x", namespace=space).remote()))
print(attempt(ray.get_actor, ""), attempt(ray.get_actor, "a", ""))


@ray.remote(num_cpus=0)
def in_task():
    return ray.get_runtime_context().namespace, ray.get(ray.get_actor("a").say.remote())


print(ray.get(in_task.remote()))
