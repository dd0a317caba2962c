"""A program that loses a node and a worker and finishes: retries, lineage and an actor's restart.

Runs unmodified on real Ray. Work is stood in for by sleeping as long as it would take.
"""

import time

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PARTS = 48
PART_BYTES = 4 * 2**20


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Progress:
    """Counts what is done; after a restart it starts from zero."""

    def __init__(self) -> None:
        self.done = 0

    def add(self, n: int) -> int:
        self.done += n
        return self.done


@ray.remote(max_retries=4)
def simulate(part: int) -> np.ndarray:
    time.sleep(6 + part % 5)
    return np.full(PART_BYTES, part, dtype=np.uint8)


@ray.remote(max_retries=4)
def evaluate(result: np.ndarray) -> int:
    time.sleep(3)
    return int(result[0])


def main() -> None:
    ray.init(address="auto")
    started = time.time()
    last = max(ray.nodes(), key=lambda node: node["NodeManagerAddress"])
    near_it = NodeAffinitySchedulingStrategy(node_id=last["NodeID"], soft=True)
    progress = Progress.options(scheduling_strategy=near_it).remote()
    ray.get(progress.add.remote(0))
    results = [simulate.options(scheduling_strategy="SPREAD").remote(i) for i in range(PARTS)]
    ray.wait(results, num_returns=PARTS, fetch_local=False)
    print(f"simulated at {time.time() - started:.1f} s")

    scores = [evaluate.remote(result) for result in results]
    pending, total = scores, 0
    while pending:
        ready, pending = ray.wait(pending, num_returns=min(8, len(pending)))
        total += sum(ray.get(ready))
        counted = ray.get(progress.add.remote(len(ready)))
        print(f"{time.time() - started:.1f} s: {counted} counted, {len(pending)} to go")
    print(f"sum {total}, expected {sum(range(PARTS))}")


if __name__ == "__main__":
    main()
