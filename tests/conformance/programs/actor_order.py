"""Order of calls when arguments are late, and when order is given up."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote
def slow(x):
    time.sleep(0.7)
    return x


@ray.remote(num_cpus=0)
class Diary:
    def __init__(self):
        self.entries = []

    def write(self, entry):
        self.entries.append(entry)
        return len(self.entries)

    def read(self):
        return self.entries


diary = Diary.remote()
diary.write.remote("first")
diary.write.remote(slow.remote("late"))
diary.write.remote("last")
print(ray.get(diary.read.remote()))

loose = Diary.options(allow_out_of_order_execution=True).remote()
ray.get(loose.read.remote())
refs = [loose.write.remote(slow.remote("late")), loose.write.remote("early")]
ray.get(refs)
print(ray.get(loose.read.remote()))


@ray.remote
def write(diary, who):
    return [ray.get(diary.write.remote((who, i))) for i in range(3)]


shared = Diary.remote()
ray.get([write.remote(shared, who) for who in "ab"])
entries = ray.get(shared.read.remote())
print([[i for w, i in entries if w == who] for who in "ab"], len(entries))
