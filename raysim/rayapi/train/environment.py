"""What Ray Train's workers find in ``os.environ``, and what OpenMP reads there.

Real counterparts (ray 2.60): ``ray/train/torch/config.py``, ``ray/_private/utils.py``
(``set_omp_num_threads_if_unset``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from raysim.perf.host import HostPool, threads_said
from raysim.raycore.ids import node_ip

if TYPE_CHECKING:
    from raysim.rayapi.train.worker import Worker

THREADS = "OMP_NUM_THREADS"


def set_environment(worker: Worker) -> None:
    """In its fiber, before the loop."""
    context, state, run = worker.context, worker.state, worker.run
    for variable, text in run.env_vars.items():
        state.set_env(variable, text)
    if THREADS not in os.environ:
        state.set_env(THREADS, str(max(1, int(run.cpus))))
    said = {
        "RANK": context.rank, "LOCAL_RANK": context.local_rank,
        "WORLD_SIZE": context.world_size, "LOCAL_WORLD_SIZE": context.local_world_size,
        "NODE_RANK": context.node_rank, "MASTER_ADDR": node_ip(next(iter(context.gang.nodes))),
        "MASTER_PORT": 29500,
    }  # fmt: skip
    for name, value in said.items():
        state.set_env(name, str(value))


def host_pool(worker: Worker) -> HostPool:
    """Of a rank, in its fiber; a launched script's is as its launcher has left it."""
    return HostPool(threads=threads_said(os.environ.get(THREADS, "")), bound=worker.run.bound)
