"""Never more than so many tasks submitted at once, by ray.wait."""
# cluster: 2 CPU

import ray

ray.init()
LIMIT = 4


@ray.remote
def work(i):
    return i * i


pending, total, most = [], 0, 0
for i in range(30):
    if len(pending) >= LIMIT:
        ready, pending = ray.wait(pending, num_returns=1)
        total += ray.get(ready[0])
    pending.append(work.remote(i))
    most = max(most, len(pending))
total += sum(ray.get(pending))
print(total, most)

unfinished = {work.remote(i): i for i in range(8)}
matches = 0
while unfinished:
    ready, _ = ray.wait(list(unfinished), num_returns=min(3, len(unfinished)))
    for ref in ready:
        matches += ray.get(ref) == unfinished.pop(ref) ** 2
print(matches)
