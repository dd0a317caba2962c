"""What losing a node costs a Ray program, by how long its tasks are and when the node goes.

    python scenarios/scripts/what_a_lost_node_costs.py

The cluster is held by hand: three nodes, 48 tasks of two or ten minutes each, and one node that
loses power after so long. Ray finds out by health checks and runs its tasks again elsewhere.
"""

from __future__ import annotations

import time

import raysim

TASKS = 48


def seconds(task_s: float, fails_at: str | None) -> float:
    """How long the program takes on the cluster's clock."""
    cluster = raysim.Cluster.build(nodes=3, node="m5.2xlarge")
    if fails_at is not None:
        cluster.sim.at(fails_at, cluster.nodes[2].fail)

    def main(ray) -> None:
        @ray.remote(max_retries=3)
        def work() -> None:
            time.sleep(task_s)

        ray.get([work.remote() for _ in range(TASKS)])

    cluster.run(main)
    return cluster.now_s


def main() -> None:
    """A row per length of task, a column per moment."""
    moments = ("1min", "3min", "9min")
    print(f"{'task':>8} {'no loss':>9}" + "".join(f"{f'after {m}':>13}" for m in moments))
    for minutes in (2, 10):
        whole = seconds(60 * minutes, None)
        row = [f"{minutes} min".rjust(8), f"{whole / 60:7.1f} m"]
        for moment in moments:
            lost = seconds(60 * minutes, moment)
            row.append(f"{lost / 60:7.1f} m {lost / whole - 1:+4.0%}")
        print(" ".join(row))


if __name__ == "__main__":
    main()
