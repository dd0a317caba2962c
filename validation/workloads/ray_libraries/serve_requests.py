"""Ray Serve: a deployment of two replicas called through its handle, one by one and all at once."""
# cluster: 4 CPU
# role: validation

import asyncio
import json
import time

import ray
from ray import serve


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@serve.deployment(num_replicas=2, max_ongoing_requests=8)
class Model:
    async def __call__(self, seconds):
        await asyncio.sleep(seconds)
        return seconds


ray.init()
start = time.perf_counter()
serve.start(http_options={"location": "NoServer"})
handle = serve.run(Model.bind())
handle.remote(0).result()
row("deploy_2_replicas", start)

start = time.perf_counter()
for _ in range(200):
    handle.remote(0).result()
row("one_by_one_200", start)

start = time.perf_counter()
for response in [handle.remote(0.05) for _ in range(320)]:
    response.result()
row("at_once_320_of_50ms", start)
serve.shutdown()
