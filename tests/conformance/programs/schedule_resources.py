"""Custom, fractional and memory resources limit what runs together."""
# cluster: 4 CPU, 1000 MiB memory, {"slot": 2, "tool": 1}

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
def visit():
    begin = time.time()
    time.sleep(0.6)
    return begin, time.time()


def peak(n, **options):
    visits = ray.get([visit.options(**options).remote() for _ in range(n)])
    return max(sum(begin <= now < end for begin, end in visits) for now, _ in visits)


peak(4)
print("slot 1", peak(4, resources={"slot": 1}))
print("slot 0.5", peak(4, resources={"slot": 0.5}))
print("tool 1", peak(3, resources={"tool": 1}))
print("memory", peak(4, memory=400 * 2**20))
print("cpu", peak(5, num_cpus=2))
print("both", peak(3, num_cpus=1, resources={"slot": 1, "tool": 0.4}))
print(sorted(k for k in ray.cluster_resources() if not k.startswith("node:")))
print(ray.cluster_resources()["memory"] / 2**20, ray.cluster_resources()["slot"])
for wrong in ({"slot": 1.5}, {"slot": 0.00001}, {"GPU": 1}, {"memory": 1}, {"": 1}):
    try:
        visit.options(resources=wrong).remote()
        print(wrong, "accepted")
    except Exception as error:
        print(wrong, type(error).__name__, str(error).split(". ")[0][:60])
