"""Environment variables of tasks, actors and the job."""
# cluster: 2 CPU

import os

import ray

ray.init(runtime_env={"env_vars": {"CONFORM_JOB": "job", "CONFORM_BOTH": "job"}})


@ray.remote
def look(*names):
    return [os.environ.get(name) for name in names]


@ray.remote
class Looker:
    def look(self, *names):
        return [os.environ.get(name) for name in names]


names = ("CONFORM_JOB", "CONFORM_BOTH", "CONFORM_TASK")
print(ray.get(look.remote(*names)))
env = {"env_vars": {"CONFORM_TASK": "task", "CONFORM_BOTH": "task"}}
print(ray.get(look.options(runtime_env=env).remote(*names)))
looker = Looker.options(runtime_env=env).remote()
print(ray.get(looker.look.remote(*names)))
print(ray.get(look.remote(*names)))
print([os.environ.get(name) for name in names])
