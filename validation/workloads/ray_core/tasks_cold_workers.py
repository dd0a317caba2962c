"""Tasks that need new worker processes: one, four and eight at once."""
# cluster: 8 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def who(seconds):
    time.sleep(seconds)


ray.init()
ray.get(who.remote(0))


def cold(count, name):
    """Another environment variable: none of the workers there will do."""
    env = {"env_vars": {"NEW_WORKERS": name}}
    start = time.perf_counter()
    ray.get([who.options(runtime_env=env).remote(0.5) for _ in range(count)])
    row(name, start)


for count in (1, 4, 8):
    cold(count, f"cold_{count}")
