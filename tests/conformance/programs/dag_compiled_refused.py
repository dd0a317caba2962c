"""Compiled graphs: what cannot be compiled."""
# cluster: 2 CPU

import ray
from ray.dag import InputNode, MultiOutputNode

ray.init()


@ray.remote(num_cpus=0)
class Worker:
    def inc(self, x):
        return x + 1

    def add(self, a, b):
        return a + b


@ray.remote
def task(x):
    return x


def compile_it(make):
    with InputNode() as given:
        node = make(given)
    try:
        node.experimental_compile()
        print("compiled")
    except Exception as error:
        text = str(error).split("\n")[0].split("(")[0]
        print(type(error).__name__, text.split(" attributes ")[0])  # their order is a set's


a, b = Worker.remote(), Worker.remote()
compile_it(lambda given: task.bind(given))
compile_it(lambda given: Worker.bind().inc.bind(given))
compile_it(lambda given: a.inc.bind(1))
compile_it(lambda given: MultiOutputNode([a.inc.bind(given), a.inc.bind(1)]))
compile_it(lambda given: (a.inc.bind(given), b.inc.bind(given))[1])
compile_it(lambda given: a.inc.bind(x=given))
compile_it(lambda given: a.add.bind(given, given[0]))
compile_it(lambda given: (given.z, a.inc.bind(given.x))[1])
