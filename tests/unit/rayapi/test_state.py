"""Listings from within a program: what it is told of itself, and every attempt of a task."""

from __future__ import annotations

from pathlib import Path

from tests.rayapi_parts import printed
from tests.unit.program_cases import script

WHERE = """
import os
import ray
from ray.util.state import get_task, list_nodes, list_objects, list_workers

@ray.remote
def where():
    context = ray.get_runtime_context()
    return os.getpid(), context.get_node_id(), context.get_task_name()

ref = where.remote()
pid, node_id, name = ray.get(ref)
task = get_task(ref)
print((task.worker_pid, task.node_id, task.name) == (pid, node_id, name))
print([worker.worker_type for worker in list_workers(filters=[("pid", "=", pid)])])
(node,) = list_nodes(filters=[("node_id", "=", node_id)])
(known,) = (row for row in ray.nodes() if row["NodeID"] == node_id)
print((node.node_ip, node.labels) == (known["NodeManagerAddress"], known["Labels"]))
print([thing.task_status for thing in list_objects() if thing.object_id == ref.hex()])
"""
ATTEMPTS = """
import os
import ray
from ray.util.state import get_task

@ray.remote
class Counter:
    count = 0

    def add(self):
        self.count += 1
        return self.count

@ray.remote(max_retries=1)
def falls_over(counter):
    if ray.get(counter.add.remote()) == 1:
        os._exit(1)

ref = falls_over.remote(Counter.remote())
ray.get(ref)
print([(attempt.attempt_number, attempt.state) for attempt in get_task(ref)])
"""


def test_a_task_is_listed_where_it_says_it_is(tmp_path: Path) -> None:
    found = printed(script(tmp_path, WHERE))
    assert found == ["True", "['WORKER']", "True", "['FINISHED']"]


def test_every_attempt_of_a_task_is_listed(tmp_path: Path) -> None:
    assert printed(script(tmp_path, ATTEMPTS)) == ["[(0, 'FAILED'), (1, 'FINISHED')]"]
