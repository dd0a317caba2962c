"""The state API: tasks that wait, and objects."""
# cluster: 2 CPU

import time

import numpy as np
import ray
from ray.util.state import get_task, list_objects, list_tasks

ray.init()
job = ray.get_runtime_context().get_job_id()


@ray.remote
def nap(seconds, _after=None):
    time.sleep(seconds)


@ray.remote
def parent():
    return ray.get(nap.options(num_cpus=2, name="child").remote(60))


refs = [nap.options(num_cpus=2).remote(60)]
time.sleep(1)
refs.append(nap.options(name="queued").remote(0))
refs.append(nap.options(name="dependent").remote(0, refs[0]))
refs.append(nap.options(name="infeasible", resources={"none": 1}).remote(0))


def states(wanted):
    for _ in range(50):
        tasks = list_tasks(filters=[("job_id", "=", job)])
        seen = sorted((task.name, task.state) for task in tasks)
        if len(seen) == wanted:
            return seen
        time.sleep(0.2)
    return seen


time.sleep(2)
print(states(4))
task_id = refs[0].task_id().hex()
print(get_task(task_id).state, get_task(task_id).required_resources)
big = ray.put(np.zeros(100_000))
small = ray.put(1)
objects = {obj.object_id: obj for obj in list_objects(limit=1000)}
for ref in (big, small):
    seen = objects[ref.hex()]
    print(seen.object_size, seen.reference_type, seen.type, seen.task_status)
print(sorted(vars(objects[big.hex()])))
for ref in refs:
    ray.cancel(ref, force=True)
