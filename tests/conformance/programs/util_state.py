"""The state API: what ran, what is alive, where."""
# cluster: 2 CPU

import time

import ray
from ray.util.state import (
    get_actor,
    list_actors,
    list_jobs,
    list_nodes,
    list_placement_groups,
    list_tasks,
    summarize_actors,
    summarize_tasks,
)

ray.init()
job = ray.get_runtime_context().get_job_id()


@ray.remote
def work(x):
    if x == 2:
        raise ValueError("two")
    return x


@ray.remote(num_cpus=0)
class Actor:
    def hello(self):
        return "hello"


actor = Actor.options(name="state").remote()
ray.get(actor.hello.remote())
dead = Actor.remote()
ray.get(dead.hello.remote())
ray.kill(dead)
ray.wait([work.remote(i) for i in range(3)], num_returns=3)
mine = [("job_id", "=", job)]
for _ in range(100):
    tasks = list_tasks(filters=mine)
    if len(tasks) == 7 and all(task.state in ("FINISHED", "FAILED") for task in tasks):
        break
    time.sleep(0.2)
print(sorted((task.name, task.type, task.state) for task in tasks))
print(sorted(vars(tasks[0])))
print([t.error_type for t in tasks if t.state == "FAILED"])
print(sorted((a.class_name, a.state, a.name) for a in list_actors(filters=mine)))
print(get_actor(actor._actor_id.hex()).state)
summary = summarize_tasks()["cluster"]
print(sorted(summary))
groups = summary["summary"]
print(sorted((g["func_or_class_name"], sorted(g["state_counts"].items())) for g in groups.values()
             if g["func_or_class_name"] == "work"))  # fmt: skip
print(sorted(summarize_actors()["cluster"]))
print([(node.state, node.is_head_node) for node in list_nodes()], list_placement_groups())
print([(j.status, j.type) for j in list_jobs() if j.job_id == job])
