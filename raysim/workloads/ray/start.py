"""Any generated workload, started in a driver by the kind of its spec."""

from __future__ import annotations

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.workloads.ray.actor_pool import ActorPool, start_actor_pool
from raysim.workloads.ray.arrivals import Arrivals, start_arrivals
from raysim.workloads.ray.broadcast import Broadcast, start_broadcast
from raysim.workloads.ray.dag import TaskGraph, start_task_graph
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.replay import Replay, start_replay
from raysim.workloads.ray.shuffle import Shuffle, start_shuffle
from raysim.workloads.ray.task_bag import TaskBag, start_task_bag

Workload = TaskBag | TaskGraph | ActorPool | Shuffle | Broadcast | Arrivals | Replay


def start_workload(spec: Workload, process: CoreProcess, streams: Streams, then: Then) -> Program:
    """Start it; ``then`` when it has ended."""
    match spec:
        case TaskBag():
            return start_task_bag(spec, process, streams, then)
        case TaskGraph():
            return start_task_graph(spec, process, then)
        case ActorPool():
            return start_actor_pool(spec, process, streams, then)
        case Shuffle():
            return start_shuffle(spec, process, streams, then)
        case Broadcast():
            return start_broadcast(spec, process, streams, then)
        case Arrivals():
            return start_arrivals(spec, process, streams, then)
        case Replay():
            return start_replay(spec, process, then)
