"""What goes wrong: errors of methods and constructors, timeouts, full queues, unknown names."""
# cluster: 8 CPU

import asyncio
import time

import ray
from ray import serve
from ray.serve.exceptions import BackPressureError, RayServeException

ray.init()


def attempt(what, function):
    try:
        print(what, function())
    except Exception as error:
        kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"]
        print(what, "raises", kinds[0], str(error).strip().splitlines()[-1][:60])


class Strange(ValueError):
    pass


@serve.deployment(max_ongoing_requests=1, max_queued_requests=1)
class Worker:
    def fail(self):
        raise ValueError("not today")

    async def fail_later(self):
        await asyncio.sleep(0.05)
        raise KeyError("gone")

    def nap(self, seconds):
        time.sleep(seconds)
        return "rested"

    def stream(self):
        yield 1
        raise RuntimeError("half way")


@serve.deployment
class Outer:
    def __init__(self, worker):
        self.worker = worker

    async def __call__(self):
        try:
            return await self.worker.fail.remote()
        except ValueError as error:
            return f"caught {type(error).__name__.split('(')[0]}"

    async def passes(self):
        return await self.worker.fail.remote()


handle = serve.run(Outer.bind(Worker.bind()))
worker = serve.get_deployment_handle("Worker", "default")
attempt("fail", lambda: worker.fail.remote().result())
attempt("later", lambda: worker.fail_later.remote().result())
attempt("caught", lambda: handle.remote().result())
attempt("passes", lambda: handle.passes.remote().result())
attempt("method", lambda: worker.nothing.remote().result())
attempt("timeout", lambda: worker.nap.remote(1.5).result(timeout_s=0.3))
time.sleep(2)

items = worker.options(method_name="stream", stream=True).remote()
print("item", next(items))
attempt("stream", lambda: next(items))
attempt("unstreamed", lambda: worker.stream.remote().result())

naps = [worker.nap.remote(0.8)]
time.sleep(0.3)
naps += [worker.nap.remote(0.1) for _ in range(3)]
outcomes = []
for nap in naps:
    try:
        outcomes.append(nap.result())
    except BackPressureError as error:
        outcomes.append(error.message[:44])
print(outcomes)

attempt("no app", lambda: serve.get_app_handle("nobody"))
attempt("not bound", lambda: serve.run(Outer))
attempt("both", lambda: serve.deployment(num_replicas=2, autoscaling_config={"max_replicas": 2}))
attempt("zero", lambda: serve.deployment(num_replicas=0))
attempt("called", lambda: Outer())
attempt("name", lambda: Outer.options(name="a#b"))
try:
    serve.get_replica_context()
except RayServeException as error:
    print("context", "deployment" in str(error))


@serve.deployment(max_constructor_retry_count=1)
class Broken:
    def __init__(self):
        raise RuntimeError("cannot start")


try:
    serve.run(Broken.bind(), name="broken", route_prefix="/broken")
except RuntimeError as error:
    print(str(error).splitlines()[0][:40])
print(serve.status().applications["broken"].status)
serve.shutdown()
