"""Count words with map tasks of several results and reduce tasks."""
# cluster: 2 CPU

import zlib
from collections import Counter

import ray

ray.init()
TEXTS = ["the cat sat on the mat", "a cat and a dog", "the dog sat", "on and on"]
PARTS = 3


@ray.remote(num_returns=PARTS)
def count(text):
    parts = [Counter() for _ in range(PARTS)]
    for word in text.split():
        parts[zlib.crc32(word.encode()) % PARTS][word] += 1
    return parts


@ray.remote
def merge(*counters):
    total = Counter()
    for counter in counters:
        total.update(counter)
    return total


mapped = [count.remote(text) for text in TEXTS]
reduced = ray.get([merge.remote(*(parts[i] for parts in mapped)) for i in range(PARTS)])
total = sum(reduced, Counter())
print(sorted(total.items()))
print([len(part) for part in reduced])
