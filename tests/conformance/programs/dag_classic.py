"""Graphs of calls: bind and execute."""
# cluster: 2 CPU

import ray
from ray.dag import InputNode, MultiOutputNode

ray.init()


@ray.remote
def add(x, y=0):
    return x + y


@ray.remote(num_returns=2)
def split(x):
    return x, -x


@ray.remote(num_cpus=0)
class Adder:
    def __init__(self, start):
        self.total = start

    def add(self, x):
        self.total += x
        return self.total

    def get(self):
        return self.total


def attempt(f):
    try:
        print("value", f())
    except Exception as error:
        name = type(error).__name__
        print(name, "" if "Task" in name else str(error).split("\n")[0][:100])


print(ray.get(add.bind(add.bind(1, y=2), 3).execute()))

with InputNode() as given:
    graph = add.bind(add.bind(given[0], y=given.k), given[1])
print(ray.get(graph.execute(1, 10, k=100)))

with InputNode() as given:
    graph = add.bind(given["a"], given["b"])
print(ray.get(graph.execute({"a": 1, "b": 4})))


class Data:
    x = 5


with InputNode() as given:
    graph = add.bind(given.x, 1)
print(ray.get(graph.execute(Data())))

with InputNode() as given:
    shared = add.bind(given, 1)
    graph = MultiOutputNode([add.bind(shared, shared), shared])
refs = graph.execute(1)
print(len(refs), ray.get(refs))

with InputNode() as given:
    adder = Adder.bind(10)
    adder.add.bind(given)
    graph = adder.get.bind()
print(ray.get(graph.execute(5)), ray.get(graph.execute(7)))

handle = Adder.remote(0)
with InputNode() as given:
    graph = handle.add.bind(given)
print(ray.get(graph.execute(5)), ray.get(graph.execute(7)))

print(ray.get(add.options(num_cpus=2).bind(1, 1).execute()))
print(type(Adder.bind(1).execute()).__name__)
print([ray.get(r) for r in split.bind(3).execute()])
print(type(graph).__name__, type(given).__name__, type(given[0]).__name__, type(shared).__name__)


@ray.remote
def total(values):
    return sum(ray.get(list(values["refs"])))


print(ray.get(total.bind({"refs": [add.bind(1), add.bind(2)]}).execute()))

attempt(lambda: add.bind(1).bind(2))
attempt(lambda: add.bind(1).remote(2))
attempt(lambda: Adder.bind(1).nothing)
attempt(lambda: Adder.bind(1).add.remote(1))
attempt(lambda: Adder.bind(given))
attempt(lambda: InputNode(3))
attempt(lambda: InputNode().execute(1))
attempt(lambda: MultiOutputNode(add.bind(1)))
attempt(lambda: ray.get(add.bind("a", 1).execute()))
