"""Environment variables of jobs, tasks and actors: what is inherited, what is one's own."""
# cluster: 2 CPU

import os

import ray

os.environ["DRIVER_ONLY"] = "driver"
ray.init(runtime_env={"env_vars": {"JOB": "job", "BOTH": "of the job"}})

NAMES = ("JOB", "BOTH", "TASK", "DRIVER_ONLY", "SET")


def seen():
    return {name: os.environ.get(name) for name in NAMES if name in os.environ}


@ray.remote(num_cpus=0)
def look():
    return seen()


@ray.remote(num_cpus=0)
def parent():
    return seen(), ray.get(look.remote())


@ray.remote(num_cpus=0)
class Actor:
    def look(self):
        return seen()

    def set(self, name, value):
        os.environ[name] = value

    def child(self):
        return ray.get(look.remote())

    def own_env(self):
        return ray.get_runtime_context().runtime_env.get("env_vars")


print("job", ray.get(look.remote()))
mine = {"env_vars": {"TASK": "task", "BOTH": "of the task"}}
print("task", ray.get(look.options(runtime_env=mine).remote()))
print("job again", ray.get(look.remote()))
print("parent", ray.get(parent.options(runtime_env=mine).remote()))
actor = Actor.options(runtime_env=mine).remote()
print("actor", ray.get(actor.look.remote()))
ray.get(actor.set.remote("SET", "by itself"))
ray.get(actor.set.remote("TASK", "changed"))
print("changed", ray.get(actor.look.remote()))
print("child of actor", ray.get(actor.child.remote()))
print("as asked for", ray.get(actor.own_env.remote()))
plain = Actor.remote()
print("plain actor", ray.get(plain.look.remote()), ray.get(plain.own_env.remote()))
print("driver", seen())
print(sorted(ray.get_runtime_context().runtime_env.items()))
for wrong in ({"env_vars": {"A": 1}}, {"env_vars": ["A"]}, {"no_such_option": 1}):
    try:
        ray.get(look.options(runtime_env=wrong).remote())
        print("accepted")
    except Exception as error:
        print(type(error).__name__)
