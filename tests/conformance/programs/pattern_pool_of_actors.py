"""Batches over a few stateful actors, round robin and by who is free."""
# cluster: 2 CPU

import itertools

import ray

ray.init()


@ray.remote(num_cpus=0)
class Model:
    def __init__(self, weight):
        self.weight = ray.get(weight) if isinstance(weight, ray.ObjectRef) else weight
        self.batches = 0

    def predict(self, batch):
        self.batches += 1
        return [self.weight * x for x in batch]

    def count(self):
        return self.batches


weight = ray.put(3)
models = [Model.remote(weight), Model.remote([weight][0])]
batches = [list(range(i, i + 2)) for i in range(0, 10, 2)]
turns = itertools.cycle(models)
print(ray.get([next(turns).predict.remote(batch) for batch in batches]))
print(ray.get([model.count.remote() for model in models]))

idle, busy, out = list(models), {}, []
for batch in batches:
    if not idle:
        (ready,), _ = ray.wait(list(busy))
        idle.append(busy.pop(ready))
        out.extend(ray.get(ready))
    model = idle.pop()
    busy[model.predict.remote(batch)] = model
for ref in busy:
    out.extend(ray.get(ref))
print(sorted(out), sum(ray.get([model.count.remote() for model in models])))
