"""Features of many partitions: tasks of four CPUs, retried when their node is taken back."""

import sys
import time

import ray


@ray.remote(num_cpus=4, max_retries=-1)
def featurize(partition: int) -> int:
    time.sleep(60 + partition % 7 * 5)
    return partition


def main() -> None:
    ray.init()
    partitions = int(sys.argv[1])
    done = ray.get([featurize.remote(i) for i in range(partitions)])
    print(f"{len(done)} partitions")


if __name__ == "__main__":
    main()
