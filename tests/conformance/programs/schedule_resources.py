"""Custom, fractional and memory resources limit what runs together."""
# cluster: 4 CPU, 1000 MiB memory, {"slot": 2, "tool": 1}

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Meeting:
    def __init__(self):
        self.now = self.most = 0

    def enter(self):
        self.now += 1
        self.most = max(self.now, self.most)

    def leave(self):
        self.now -= 1

    def peak(self):
        return self.most


@ray.remote(num_cpus=0)
def visit(meeting):
    ray.get(meeting.enter.remote())
    time.sleep(0.6)
    ray.get(meeting.leave.remote())


def peak(n, **options):
    meeting = Meeting.remote()
    ray.get([visit.options(**options).remote(meeting) for _ in range(n)])
    return ray.get(meeting.peak.remote())


ray.get([visit.remote(Meeting.remote()) for _ in range(4)])
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
        visit.options(resources=wrong).remote(None)
        print(wrong, "accepted")
    except Exception as error:
        print(wrong, type(error).__name__, str(error).split(". ")[0][:60])
