"""Stages as actors; batches flow through as references."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_cpus=0)
class Stage:
    def __init__(self, name, change):
        self.name, self.change = name, change
        self.seen = []

    def process(self, batch):
        self.seen.append(batch[0])
        return [self.change(x) for x in batch]

    def order(self):
        return self.name, self.seen


stages = [
    Stage.remote("load", lambda x: x + 1),
    Stage.remote("double", lambda x: 2 * x),
    Stage.remote("text", str),
]
outputs = []
for start in range(0, 12, 3):
    ref = ray.put(list(range(start, start + 3)))
    for stage in stages:
        ref = stage.process.remote(ref)
    outputs.append(ref)
print(ray.get(outputs))
print(ray.get([stage.order.remote() for stage in stages]))
