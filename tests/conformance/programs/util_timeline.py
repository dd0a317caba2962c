"""ray.timeline: what it knows of each task."""
# cluster: 2 CPU

import json
import tempfile
import time
from pathlib import Path

import ray

ray.init()


@ray.remote
def step(x):
    return x


@ray.remote(num_cpus=0)
class Actor:
    def call(self):
        return 1


ray.get([step.remote(i) for i in range(3)])
actor = Actor.remote()
ray.get(actor.call.remote())
for _ in range(50):
    events = ray.timeline()
    if sum(event["cat"] == "task::step" for event in events) >= 3:
        break
    time.sleep(0.2)
time.sleep(2)
seen = set()
events = ray.timeline()
for event in events:
    if event["cat"] in ("task::step", "task::Actor.call"):
        seen.add((event["cat"], event["name"], event["cname"]))
print(sorted(seen))
print(sorted({event["ph"] for event in events}))
print(sorted(next(event for event in events if event["cat"] == "task::step")))
path = Path(tempfile.mkdtemp()) / "timeline.json"
ray.timeline(str(path))
print(type(json.loads(path.read_text())).__name__)
