"""max_task_retries: calls are made again on the restarted actor."""
# cluster: 2 CPU

import os

import ray

ray.init()


@ray.remote(num_cpus=0)
class Attempts:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        return self.n


@ray.remote(num_cpus=0)
class Shaky:
    def crash_until(self, attempts, n):
        at = ray.get(attempts.up.remote())
        if at < n:
            os._exit(1)
        return at

    def fail_until(self, attempts, n):
        at = ray.get(attempts.up.remote())
        if at < n:
            raise ValueError(f"attempt {at}")
        return at


def outcome(ref):
    try:
        return ray.get(ref, timeout=60)
    except Exception as error:
        return type(error).__name__


shaky = Shaky.options(max_restarts=-1, max_task_retries=-1).remote()
print("forever", outcome(shaky.crash_until.remote(Attempts.remote(), 3)))
attempts = Attempts.remote()
shaky = Shaky.options(max_restarts=5, max_task_retries=1).remote()
print("once", outcome(shaky.crash_until.remote(attempts, 9)), ray.get(attempts.up.remote()) - 1)
attempts = Attempts.remote()
shaky = Shaky.options(max_task_retries=2).remote()
print("no restarts", outcome(shaky.crash_until.remote(attempts, 3)))
attempts = Attempts.remote()
shaky = Shaky.remote()
call = shaky.fail_until.options(max_task_retries=2, retry_exceptions=True)
print("exceptions", outcome(call.remote(Attempts.remote(), 3)))
print("default", outcome(shaky.fail_until.remote(Attempts.remote(), 2)))
