"""Sum by a tree of tasks."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def add(x, y):
    return x + y


level = [ray.put(i) for i in range(1, 17)]
depth = 0
while len(level) > 1:
    level = [add.remote(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    depth += 1
print(depth, ray.get(level[0]))
values = [ray.put(i) for i in range(1, 8)]
while len(values) > 1:
    values = values[2:] + [add.remote(values[0], values[1])]
print(ray.get(values))
