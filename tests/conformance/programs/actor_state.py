"""An actor keeps state; calls of one caller run in the order they were made."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
class Counter:
    def __init__(self, start=0, *, step=1):
        self.value = start
        self.step = step

    def up(self, times=1):
        self.value += self.step * times
        return self.value

    def read(self):
        return self.value


counter = Counter.remote(10, step=5)
print(type(counter).__name__, str(counter).split(",")[0])
refs = [counter.up.remote() for _ in range(100)]
values = ray.get(refs)
print(values[0], values[-1], values == sorted(values))
counter.up.remote(times=2)
print(ray.get(counter.read.remote()))
others = [Counter.remote(i) for i in range(3)]
print(ray.get([other.up.remote() for other in others]))
text = Counter.options(num_cpus=1).remote("a", step="b")
print(ray.get(text.up.remote(3)))
