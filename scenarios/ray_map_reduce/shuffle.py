"""Map-reduce: mappers read and cut their input into parts, reducers take one part of every mapper.

Runs unmodified on real Ray. The data is zeros, its size is what matters; reading and adding up are
stood in for by sleeping as long as they would take.
"""

import argparse
import time

import numpy as np
import ray

MIB = 2**20


@ray.remote
def read_and_partition(mapper: int, reducers: int, part_bytes: int) -> list[np.ndarray]:
    time.sleep(1.5 + 0.1 * (mapper % 4))
    return [np.zeros(part_bytes, dtype=np.uint8) for _ in range(reducers)]


@ray.remote
def reduce(*parts: np.ndarray) -> int:
    time.sleep(0.8)
    return sum(len(part) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mappers", type=int, default=24)
    parser.add_argument("--reducers", type=int, default=8)
    parser.add_argument("--part-mib", type=int, default=8)
    options = parser.parse_args()

    ray.init(address="auto")
    started = time.time()
    part_bytes = options.part_mib * MIB
    mapped = [
        read_and_partition.options(num_returns=options.reducers).remote(
            mapper, options.reducers, part_bytes
        )
        for mapper in range(options.mappers)
    ]
    sizes = [
        reduce.remote(*(parts[reducer] for parts in mapped)) for reducer in range(options.reducers)
    ]
    del mapped
    total = sum(ray.get(sizes))
    print(f"{total / 2**30:.2f} GiB shuffled in {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
