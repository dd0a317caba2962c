"""Sum by a tree of tasks, against a chain."""

import time

import ray


@ray.remote
def add(x, y):
    time.sleep(0.5)
    return x + y


def tree(values):
    while len(values) > 1:
        values = [*values[2:], add.remote(values[0], values[1])]
    return ray.get(values[0])


def chain(values):
    total = values[0]
    for value in values[1:]:
        total = add.remote(total, value)
    return ray.get(total)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    ray.get([add.remote(0, 0) for _ in range(4)])
    began = time.time()
    print(tree(list(range(1, 9))))
    tree_s = time.time() - began
    began = time.time()
    print(chain(list(range(1, 9))))
    chain_s = time.time() - began
    print(tree_s < chain_s, 1.4 < tree_s < 3.0, 3.4 < chain_s < 5.0)
    ray.shutdown()
