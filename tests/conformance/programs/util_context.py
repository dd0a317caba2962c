"""The runtime context, in the driver, a task and an actor."""
# cluster: 2 CPU

import ray

ray.init(namespace="context")


def look():
    context = ray.get_runtime_context()
    return {
        "job": context.get_job_id(),
        "node": context.get_node_id(),
        "worker": context.get_worker_id(),
        "task": context.get_task_id(),
        "actor": context.get_actor_id(),
        "task name": context.get_task_name(),
        "function": context.get_task_function_name(),
        "actor name": context.get_actor_name(),
        "namespace": context.namespace,
        "resources": context.get_assigned_resources(),
    }


@ray.remote
def in_task():
    return look()


@ray.remote(num_cpus=1)
class Actor:
    def look(self):
        return look()


def show(seen):
    return {k: len(v) if isinstance(v, str) and k in lengths else v for k, v in seen.items()}


lengths = {"job", "node", "worker", "task", "actor"}
context = ray.get_runtime_context()
print(len(context.get_job_id()), len(context.get_node_id()), len(context.get_worker_id()))
print(context.get_task_id(), context.get_actor_id(), context.get_task_name(), context.namespace)
task = ray.get(in_task.options(name="my task").remote())
print(show(task))
print(show(ray.get(in_task.remote()))["task name"])
actor = Actor.options(name="my actor").remote()
seen = ray.get(actor.look.remote())
print(show(seen))
print(seen["actor"] == actor._actor_id.hex(), seen["job"] == context.get_job_id() == task["job"])
print(seen["node"] == context.get_node_id(), seen["task"].endswith(seen["actor"]))
try:
    context.current_actor
except RuntimeError as error:
    print("RuntimeError", str(error).split(".")[0])
