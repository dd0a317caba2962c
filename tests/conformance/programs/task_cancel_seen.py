"""What a cancelled task sees of it, and what cancel refuses."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Notes:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def all(self):
        return self.lines


@ray.remote
def tidy(notes):
    ray.get(notes.add.remote("started"))
    try:
        for _ in range(600):
            time.sleep(0.05)
    except KeyboardInterrupt:
        ray.get(notes.add.remote("interrupted"))
        raise
    finally:
        ray.get(notes.add.remote("tidied"))


@ray.remote
def yields():
    for i in range(600):
        yield i
        time.sleep(0.1)


notes = Notes.remote()
ref = tidy.remote(notes)
while not ray.get(notes.all.remote()):
    time.sleep(0.1)
ray.cancel(ref)
try:
    ray.get(ref)
except ray.exceptions.TaskCancelledError as error:
    print(type(error).__name__, isinstance(error, ray.exceptions.RayTaskError))
print(ray.get(notes.all.remote()))

gen = yields.remote()
print(ray.get(next(gen)), ray.get(next(gen)))
ray.cancel(gen)
try:
    for ref in gen:
        ray.get(ref)
except ray.exceptions.TaskCancelledError as error:
    print(type(error).__name__)

for wrong in (ray.put(1), "text"):
    try:
        ray.cancel(wrong)
        print("accepted")
    except Exception as error:
        print(type(error).__name__, str(error).split("(")[0].splitlines()[0])
try:
    ray.cancel(notes.all.remote(), force=True)
except ValueError as error:
    print("ValueError", error)
