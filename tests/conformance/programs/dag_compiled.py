"""Compiled graphs: results, order, capacity, errors, teardown."""
# cluster: 4 CPU

import copy
import time

import ray
from ray.dag import DAGContext, InputNode, MultiOutputNode

ray.init()


@ray.remote
class Worker:
    def __init__(self, k=0):
        self.k = k
        self.calls = 0

    def inc(self, x):
        self.calls += 1
        return x + self.k

    def fail(self, x):
        if x == 3:
            raise ValueError("three")
        return x

    @ray.method(num_returns=2)
    def two(self, x):
        return x, x * 10

    def add(self, a, b):
        return a + b

    def slow(self, x):
        time.sleep(x)
        return x

    def bytes(self, n):
        return b"x" * n

    def ping(self):
        return self.calls


@ray.remote
def task(x):
    return x


def attempt(f):
    try:
        print("value", f())
    except Exception as error:
        names = [c.__name__ for c in type(error).__mro__[:2]]
        print(names, str(error).split("\n")[0][:160] if "Task" not in names[0] else "")


a, b, c = Worker.remote(1), Worker.remote(10), Worker.remote(100)

with InputNode() as given:
    nodes = b.inc.bind(a.inc.bind(given))
graph = nodes.experimental_compile()
ref = graph.execute(1)
print(type(graph).__name__, type(ref).__name__, str(ref).split(",")[1:])
print(ray.get(ref))
attempt(lambda: ray.get(ref))
attempt(lambda: copy.copy(ref))
attempt(lambda: copy.deepcopy(ref))
attempt(lambda: task.remote(ref))
attempt(lambda: ray.wait([ref]))
print("other methods run beside the loop", ray.get(a.ping.remote(), timeout=5))
refs = [graph.execute(k) for k in range(10)]
attempt(lambda: graph.execute(11))
print(ray.get(refs[5]), ray.get(refs[0]), ray.get(refs[6:]))
attempt(lambda: ray.get([refs[1], task.remote(1)]))
print([r.get() for r in refs[2:5]])
dropped = graph.execute(5)
del dropped
print(ray.get(graph.execute(6)))
attempt(lambda: graph.execute())
attempt(lambda: graph.execute(1, 2))
attempt(nodes.experimental_compile)
graph.teardown()
graph.teardown()
attempt(lambda: graph.execute(1))
print(ray.get(a.ping.remote()))

with InputNode() as given:
    graph = a.fail.bind(given).experimental_compile()
for x in (1, 3, 4):
    attempt(graph.execute(x).get)
graph.teardown()

with InputNode() as given:
    outputs = [a.fail.bind(given[0]), b.inc.bind(given.y), b.add.bind(given[0], given.y)]
graph = MultiOutputNode(outputs).experimental_compile()
refs = graph.execute(2, y=3)
print(len(refs), ray.get(refs))
refs = graph.execute(3, y=3)
for ref in refs:
    attempt(ref.get)
print(ray.get(graph.execute(4, y=4)))
attempt(lambda: graph.execute(3, z=3))
graph.teardown()

with InputNode() as given:
    one, ten = a.two.bind(given)
    graph = MultiOutputNode([one, b.inc.bind(ten), c.add.bind(one, ten)]).experimental_compile()
print(ray.get(graph.execute(7)))
graph.teardown()

with InputNode() as given:
    mine = a.inc.bind(a.inc.bind(given))
    graph = c.add.bind(mine, b.inc.bind(mine)).experimental_compile()
print([ray.get(graph.execute(k)) for k in range(5)])
graph.teardown()

with InputNode() as given:
    graph = a.bytes.bind(given).experimental_compile(_buffer_size_bytes=1000)
print([len(ray.get(graph.execute(n))) for n in (10, 2_000_000, 3_000_000, 10)])
graph.teardown()

with InputNode() as given:
    graph = a.slow.bind(given).experimental_compile()
ref = graph.execute(2)
attempt(lambda: ref.get(timeout=0.5))
attempt(ref.get)
print(ray.get(graph.execute(0.1)))
context = DAGContext.get_current()
print(context.get_timeout, context.submit_timeout, context.buffer_size_bytes)
attempt(lambda: ray.get(graph.execute(12)))
graph.teardown()

with InputNode() as given:
    graph = a.inc.bind(given).experimental_compile(_max_buffered_results=2)
refs = [graph.execute(k) for k in range(6)]
attempt(refs[3].get)
attempt(refs[0].get)
attempt(refs[1].get)
graph.teardown()

with InputNode() as given:
    graph = a.inc.bind(given).experimental_compile(_max_inflight_executions=2)
refs = [graph.execute(k) for k in range(2)]
attempt(lambda: graph.execute(2))
print(ray.get(refs))

with InputNode() as given:
    second = a.inc.bind(given).experimental_compile()
attempt(lambda: second.execute(1).get(timeout=1))
graph.teardown()
print(ray.get(second.execute(5)))
second.teardown()


@ray.remote
class Driver:
    def run(self, x, y):
        with InputNode() as given:
            graph = y.inc.bind(x.inc.bind(given)).experimental_compile()
        values = [ray.get(graph.execute(k)) for k in range(5)]
        graph.teardown()
        return values


print(ray.get(Driver.options(num_cpus=0).remote().run.remote(a, b)))

mortal = Worker.options(num_cpus=0).remote(1)
with InputNode() as given:
    graph = mortal.slow.bind(given).experimental_compile()
print(ray.get(graph.execute(0)))
ref = graph.execute(30)
ray.kill(mortal)
attempt(ref.get)
time.sleep(1)
attempt(lambda: graph.execute(1))
