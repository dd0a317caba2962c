"""Tasks that need no CPU all run at once; those that need one take turns."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Meeting:
    def __init__(self):
        self.here = 0
        self.most = 0

    def enter(self):
        self.here += 1
        self.most = max(self.most, self.here)

    def leave(self):
        self.here -= 1

    def count(self):
        return self.here

    def peak(self):
        return self.most


@ray.remote
def meet(meeting, n):
    meeting.enter.remote()
    while ray.get(meeting.count.remote()) < n:
        time.sleep(0.05)
    return "met"


@ray.remote
def visit():
    begin = time.time()
    time.sleep(0.3)
    return begin, time.time()


meeting = Meeting.remote()
print(ray.get([meet.options(num_cpus=0).remote(meeting, 4) for _ in range(4)]))
visits = ray.get([visit.options(num_cpus=2).remote() for _ in range(3)])
together = max(sum(begin <= now < end for begin, end in visits) for now, _ in visits)
print("together with 2 CPUs each:", together)
half = Meeting.remote()
ray.get([meet.options(num_cpus=0.5).remote(half, 4) for _ in range(4)])
print("half a CPU each:", ray.get(half.peak.remote()))
