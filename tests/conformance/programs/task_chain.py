"""References as arguments make a chain and a diamond."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def add(x, y=1):
    return x + y


ref = add.remote(0)
for _ in range(20):
    ref = add.remote(ref)
print("chain", ray.get(ref))

left, right = add.remote(1), add.remote(10)
print("diamond", ray.get(add.remote(left, right)), ray.get(add.remote(left, left)))
refs = [add.remote(i, add.remote(i)) for i in range(5)]
print("mixed", ray.get(refs))
print("reversed", ray.get(refs[::-1]))
