"""Compiled graphs across nodes: readers here, there and both."""
# cluster: 2 CPU; 2 CPU; 2 CPU

import ray
from ray.dag import DAGContext, InputNode, MultiOutputNode

ray.init()
# Where few cores are shared, the actors' import of torch takes longer than the 10 s of the default.
DAGContext.get_current().get_timeout = DAGContext.get_current().submit_timeout = 100


@ray.remote(num_cpus=0)
class Worker:
    def inc(self, x):
        return x + 1

    def fail(self, x):
        raise ValueError(x)


here = Worker.options(resources={"n0": 0.1}).remote()
there = Worker.options(resources={"n1": 0.1}).remote()
beside = Worker.options(resources={"n1": 0.1}).remote()
far = Worker.options(resources={"n2": 0.1}).remote()

with InputNode() as given:
    graph = far.inc.bind(there.inc.bind(here.inc.bind(given))).experimental_compile()
print([ray.get(graph.execute(k)) for k in range(5)])
refs = [graph.execute(k) for k in range(4)]
print(ray.get(refs))
graph.teardown()

with InputNode() as given:
    made = there.inc.bind(given)
    outputs = [w.inc.bind(made) for w in (here, beside, far)]
    graph = MultiOutputNode([*outputs, made]).experimental_compile()
print([ray.get(graph.execute(k)) for k in range(3)])
graph.teardown()

with InputNode() as given:
    graph = far.inc.bind(there.fail.bind(given)).experimental_compile()
for _ in range(2):
    try:
        ray.get(graph.execute(1))
    except ValueError as error:
        print(type(error).__name__)
graph.teardown()
