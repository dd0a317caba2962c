"""A grid in strips: actors exchange their edges every round."""
# cluster: 2 CPU

import numpy as np
import ray

ray.init()
SIZE, STRIPS, ROUNDS = 12, 3, 6


@ray.remote(num_cpus=0)
class Strip:
    def __init__(self, cells):
        self.cells = np.array(cells)

    def edges(self):
        return self.cells[0].copy(), self.cells[-1].copy()

    def step(self, above, below):
        padded = np.vstack([above[1], self.cells, below[0]])
        near = (
            sum(np.roll(padded, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1))[1:-1]
            - self.cells
        )
        self.cells = ((near == 3) | ((self.cells == 1) & (near == 2))).astype(int)
        return int(self.cells.sum())

    def read(self):
        return self.cells


grid = np.zeros((SIZE, SIZE), dtype=int)
for y, x in ((1, 2), (2, 3), (3, 1), (3, 2), (3, 3)):
    grid[y, x] = 1
strips = [Strip.remote(part) for part in np.split(grid, STRIPS)]
for _ in range(ROUNDS):
    edges = [strip.edges.remote() for strip in strips]
    alive = ray.get([
        strip.step.remote(edges[i - 1], edges[(i + 1) % STRIPS]) for i, strip in enumerate(strips)
    ])  # fmt: skip
    print(alive)
final = np.vstack(ray.get([strip.read.remote() for strip in strips]))
print(np.argwhere(final).tolist())
