"""Streams of tasks that feed each other."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def lines(n):
    for i in range(n):
        yield f"line {i} " + "x" * i


@ray.remote
def words(line):
    return len(line.split()), len(line)


@ray.remote(num_cpus=0)
class Window:
    def __init__(self, size):
        self.size, self.items = size, []

    def feed(self, item):
        self.items = [*self.items, item][-self.size :]
        return sum(length for _, length in self.items)


window = Window.remote(2)
sums = [window.feed.remote(words.remote(line)) for line in lines.remote(5)]
print(ray.get(sums))

streams = [lines.remote(n) for n in (2, 3)]
count, pending = 0, list(streams)
while pending:
    ready, pending = ray.wait(pending)
    for stream in ready:
        try:
            ray.get(next(stream))
        except StopIteration:
            continue
        count += 1
        pending.append(stream)
print(count)
