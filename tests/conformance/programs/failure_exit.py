"""Tasks that end their process, politely and not."""
# cluster: 2 CPU

import os
import signal
import sys

import ray

ray.init()


@ray.remote(max_retries=0)
def end(how):
    if how == "sys.exit":
        sys.exit(1)
    if how == "sys.exit(0)":
        sys.exit(0)
    if how == "os._exit(0)":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return "returned"


@ray.remote(max_retries=0)
def parent_of(how):
    return ray.get(end.remote(how))


for how in ("sys.exit", "sys.exit(0)", "os._exit(0)", "kill", "return"):
    try:
        print(how, ray.get(end.remote(how)))
    except ray.exceptions.RayError as error:
        print(how, type(error).__name__)
try:
    ray.get(parent_of.remote("kill"))
except ray.exceptions.RayError as error:
    print("child", type(error).__name__, isinstance(error, ray.exceptions.WorkerCrashedError))
