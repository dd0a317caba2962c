"""Ray Serve: what a replica's start and a call through a handle take; queues short and long."""
# cluster: 4 CPU
# role: calibration

import asyncio
import json
import time

import ray
from ray import serve


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@serve.deployment(num_replicas=1, max_ongoing_requests=4)
class Narrow:
    async def __call__(self, seconds):
        await asyncio.sleep(seconds)
        return seconds


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class Wide:
    async def __call__(self, seconds):
        await asyncio.sleep(seconds)
        return seconds


ray.init()
start = time.perf_counter()
serve.start(http_options={"location": "NoServer"})
handle = serve.run(Narrow.bind(), name="narrow", route_prefix="/narrow")
handle.remote(0).result()
row("deploy_1_replica", start)

start = time.perf_counter()
for _ in range(120):
    handle.remote(0).result()
row("one_by_one_120", start)

start = time.perf_counter()
for response in [handle.remote(0.03) for _ in range(60)]:
    response.result()
row("at_once_60_of_30ms", start)

start = time.perf_counter()
handle = serve.run(Wide.bind(), name="wide", route_prefix="/wide")
handle.remote(0).result()
row("deploy_another", start)

start = time.perf_counter()
for response in [handle.remote(0.01) for _ in range(150)]:
    response.result()
row("at_once_150_unlimited", start)
serve.shutdown()
