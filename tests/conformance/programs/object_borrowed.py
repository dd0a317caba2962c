"""Objects that live because somebody else refers to them, and those whose owner is gone."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Keeper:
    def __init__(self):
        self.kept = {}

    def keep(self, name, refs):
        self.kept[name] = refs

    def read(self, name):
        return [ray.get(ref) for ref in self.kept[name]]

    def give(self, name):
        return self.kept[name]

    def drop(self, name):
        del self.kept[name]

    def make(self, value):
        return [ray.put(value)]

    def make_by_task(self, value):
        return [same.remote(value)]

    def pass_to(self, other, name):
        ray.get(other.keep.remote(name, self.kept[name]))


@ray.remote(num_cpus=0)
def same(x):
    return x


@ray.remote(num_cpus=0)
def nested(depth):
    return [ray.put(depth)] if depth == 0 else [nested.remote(depth - 1)]


@ray.remote(num_cpus=0)
def later(refs):
    time.sleep(1)
    return ray.get(refs[0])


def outcome(ref):
    try:
        value = ray.get(ref, timeout=10)
        return len(value) if isinstance(value, bytes) else value
    except Exception as error:
        return type(error).__name__


one, two = Keeper.remote(), Keeper.remote()
ref = ray.put("small")
ray.get(one.keep.remote("small", [ref]))
del ref
time.sleep(0.5)
print("borrowed", ray.get(one.read.remote("small")))
ref = ray.put(bytes(400_000))
ray.get(one.keep.remote("large", [ref]))
ray.get(one.pass_to.remote(two, "large"))
del ref
ray.get(one.drop.remote("large"))
time.sleep(0.5)
print("borrowed twice", [len(x) for x in ray.get(two.read.remote("large"))])
ref = same.remote("by a task")
pending = later.remote([ref])
del ref
print("held by a task", outcome(pending))

(made,) = ray.get(one.make.remote("made there"))
(task,) = ray.get(one.make_by_task.remote("computed there"))
(big,) = ray.get(one.make.remote(bytes(300_000)))
print(outcome(made), outcome(task), outcome(big))
back = ray.get(two.keep.remote("made", [made]))
(again,) = ray.get(two.give.remote("made"))
print("same object", again == made, outcome(again))
found, depth = nested.remote(3), 0
while True:
    found = ray.get(found)
    if not isinstance(found, list):
        break
    found, depth = found[0], depth + 1
print("nested", found, depth)

(lost,) = ray.get(one.make.remote(bytes(200_000)))
(unread,) = ray.get(one.make.remote("never read"))
ray.get(two.keep.remote("lost", [lost]))
ray.kill(one)
time.sleep(2)
print("owner gone", outcome(lost), outcome(unread))
try:
    ray.get(two.read.remote("lost"))
except Exception as error:
    print("in the borrower", type(error).__name__)
print("given to a task", outcome(same.remote(lost)))
print("the first still", ray.get(two.read.remote("large"))[0] == bytes(400_000))
