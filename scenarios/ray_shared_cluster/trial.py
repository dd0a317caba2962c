"""One trial: workers in a placement group, together or not at all, twelve steps in step."""

import sys
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

STEPS = 12


@ray.remote(num_cpus=4, max_restarts=-1, max_task_retries=-1)
class Worker:
    def step(self, n: int) -> int:
        time.sleep(10)
        return n


def main() -> None:
    ray.init()
    group = placement_group([{"CPU": 4}] * int(sys.argv[1]), strategy="SPREAD")
    ray.get(group.ready())
    where = PlacementGroupSchedulingStrategy(placement_group=group)
    workers = [Worker.options(scheduling_strategy=where).remote() for _ in group.bundle_specs]
    for n in range(STEPS):
        ray.get([w.step.remote(n) for w in workers])
    print(f"{STEPS} steps of {len(workers)} workers")


if __name__ == "__main__":
    main()
