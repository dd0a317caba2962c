"""Plays a plan on a cluster and judges what came of it.

Right is: the script ends, unless its driver was killed; every value is what it must be, or an error
of a kind that the plan explains; when everything is dropped nothing is left; and when the driver
has gone, nothing of it. Invariants of all rooms are looked at after every event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raysim.errors import InvariantViolation
from raysim.raycore.checks import ARGUMENTS_WAIT, EXIT_WAITS, leaks, waiting_on
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.faults import Faults
from raysim.raycore.object_manager.io_worker import IOWorker
from raysim.raycore.scripts import drive
from raysim.raycore.tasks import TaskError
from raysim.units import NS_PER_MS, NS_PER_S
from tests.faults.plans import MB, Fault, Plan
from tests.faults.programs import Program
from tests.raycore_parts import ray_cluster

_LIMIT_S = 3 * 3600
_MOST_EVENTS = 600_000
_SETTLE_S = 200
_GONE_S = 150


class Outcome(NamedTuple):
    """What a run came to."""

    problems: list[str]
    digest: str
    events: int
    results: int


class Breaker:
    """Does a plan's faults to a cluster, and undoes them; what makes no sense now is left out."""

    def __init__(self, cluster: Cluster, driver: CoreWorker) -> None:
        self.cluster = cluster
        self.faults = Faults(cluster)
        self.driver = driver

    def schedule(self, fault: Fault) -> None:
        at_ns, until_ns = fault.at_ms * NS_PER_MS, (fault.at_ms + fault.for_ms) * NS_PER_MS
        self.cluster.sim.at(at_ns, getattr(self, fault.what), fault)
        undo = getattr(self, f"undo_{fault.what}", None)
        if undo is not None:
            self.cluster.sim.at(until_ns, undo, fault)

    def kill_worker(self, fault: Fault) -> None:
        self.faults.kill_some_worker(fault.node)

    def kill_io_worker(self, fault: Fault) -> None:
        for worker_id, process in self.cluster.processes.items():
            if isinstance(process, IOWorker) and process.me.node_id == fault.node:
                self.faults.kill_worker(worker_id)
                return

    def kill_driver(self, _: Fault) -> None:
        self.faults.kill_worker(self.driver.me.worker_id)

    def kill_raylet(self, fault: Fault) -> None:
        if self.cluster.is_up(fault.node):
            self.faults.kill_raylet(fault.node)

    kill_head_raylet = kill_raylet

    def fail_node(self, fault: Fault) -> None:
        if self.cluster.is_up(fault.node):
            self.faults.fail_node(fault.node)

    def undo_fail_node(self, fault: Fault) -> None:
        if not self.cluster.is_up(fault.node):
            self.faults.restart_node(fault.node)

    undo_kill_raylet = undo_kill_head_raylet = undo_fail_node

    def preempt(self, fault: Fault) -> None:
        if self.cluster.is_up(fault.node):
            notice_ms = min(fault.for_ms, 30_000)
            self.faults.preempt(fault.node, f"{notice_ms}ms")
            if fault.share < 0.1:
                later_ns = (notice_ms + 20_000) * NS_PER_MS
                self.cluster.sim.call_later(later_ns, self.undo_fail_node, fault)

    def partition(self, fault: Fault) -> None:
        self.faults.partition(fault.node)

    def undo_partition(self, fault: Fault) -> None:
        self.faults.heal(fault.node)

    partition_head, undo_partition_head = partition, undo_partition

    def slow_links(self, fault: Fault) -> None:
        self.faults.slow_links(fault.node, fault.share)

    def undo_slow_links(self, fault: Fault) -> None:
        self.faults.slow_links(fault.node, 1.0)

    def fill_disk(self, fault: Fault) -> None:
        self.faults.fill_disk(fault.node)

    def undo_fill_disk(self, fault: Fault) -> None:
        self.faults.fill_disk(fault.node, 0.0)

    def kill_gcs(self, fault: Fault) -> None:
        self.faults.kill_gcs(restart_after=f"{fault.for_ms}ms")


_NODE_GONE = {
    "NODE_DIED", "WORKER_DIED", "OWNER_DIED", "ACTOR_DIED", "ACTOR_UNAVAILABLE", "OBJECT_LOST",
    "OBJECT_UNRECONSTRUCTABLE", "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
    "TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR",
}  # fmt: skip
_PROCESS_GONE = {"WORKER_DIED", "OWNER_DIED", "ACTOR_DIED", "ACTOR_UNAVAILABLE"}
_EXPLAINS: dict[str, set[str]] = {
    "kill_worker": _PROCESS_GONE, "kill_io_worker": set(), "kill_gcs": set(), "slow_links": set(),
    "fill_disk": {"OUT_OF_DISK"}, "kill_driver": set(),
    "kill_head_raylet": _NODE_GONE | {"LOCAL_RAYLET_DIED"},
    **dict.fromkeys(
        ("kill_raylet", "fail_node", "preempt", "partition", "partition_head"), _NODE_GONE
    ),
}  # fmt: skip


def explained(plan: Plan) -> set[str]:
    """Kinds of errors that a plan's own program and faults can lead to."""
    kinds: set[str] = set()
    for fault in plan.faults:
        kinds |= _EXPLAINS[fault.what]
    for step in plan.steps:
        o = step.options
        if o.get("kind") in ("exit", "leave"):
            kinds |= _PROCESS_GONE
        if step.op in ("kill", "drop_actor"):
            kinds |= {"ACTOR_DIED", "ACTOR_UNAVAILABLE", "OWNER_DIED"}
        if step.op == "cancel":
            kinds |= {"TASK_CANCELLED"} | (_PROCESS_GONE if o["force"] else set())
        if step.op == "remove_group":
            kinds |= {"TASK_PLACEMENT_GROUP_REMOVED", "OWNER_DIED"}
        if step.op == "actor" and o["raises"]:
            kinds |= {"ACTOR_CREATION_FAILED"}
    return kinds


def judge_of(plan: Plan) -> Any:
    """``judge(error)``: what is wrong with it, or nothing."""
    kinds = explained(plan)

    def judge(error: TaskError) -> str:
        cause: Any = error
        while isinstance(cause, TaskError) and isinstance(cause.data, TaskError):
            cause = cause.data
        if cause.data == "raised" or cause.error_type in kinds:
            return ""
        return f"unexplained {cause.error_type}: {cause.message}"

    return judge


def build(plan: Plan, *, check: bool, log: bool) -> Cluster:
    """The cluster of a plan."""
    return ray_cluster(
        plan.nodes, cpus=plan.cpus, seed=plan.seed, check=check, log=log,
        config={"gcs_storage": "redis"},
        options={
            n: NodeOptions(object_store_bytes=plan.store_mb * MB) for n in range(plan.nodes)
        },
    )  # fmt: skip


class Run:
    """One run of one plan."""

    def __init__(self, plan: Plan, *, check: bool = True, log: bool = False) -> None:
        self.plan = plan
        self.cluster = build(plan, check=check, log=log)
        self.program = Program(plan, judge_of(plan))
        self.ended: list[Any] = []
        self.driver = self.cluster.driver(
            lambda d: drive(d, self.program.main, self.ended.append)  # type: ignore[arg-type]
        )
        breaker = Breaker(self.cluster, self.driver)
        for fault in plan.faults:
            breaker.schedule(fault)
        self.problems = self.program.problems
        if check:
            self.cluster.sim.invariants.register("a run comes to its end", self._goes_round)

    def _goes_round(self) -> str:
        return "it does not" if self.cluster.sim.log.events > _MOST_EVENTS else ""

    def play(self) -> Outcome:
        """To its end."""
        try:
            self._play()
        except (InvariantViolation, AssertionError, ArithmeticError, LookupError, AttributeError,
                TypeError, ValueError) as e:  # fmt: skip
            e.add_note(f"in {self.program.at}, at {self.cluster.sim.now_ns / NS_PER_S} s")
            self.problems.append(f"{type(e).__name__}: {e}")
            self.failure = e
        sim = self.cluster.sim
        return Outcome(self.problems, sim.digest, sim.log.events, self.program.results)

    failure: BaseException | None = None

    @property
    def driver_lives(self) -> bool:
        return self.driver.state == "up"

    def _until(self, s: float) -> None:
        self.cluster.sim.run(int(s * NS_PER_S))

    def _play(self) -> None:
        sim = self.cluster.sim
        s = 0.0
        while not self.ended and self.driver_lives and s < _LIMIT_S:
            s += 5 if s < 120 else 600
            self._until(s)
        if not self.ended and self.driver_lives:
            waits = waiting_on(self.cluster)
            if not _stuck(waits):
                self.problems.append(f"the script has not ended: {self.program.at}")
                self.problems += waits
            return
        if not self.driver_lives and not explained_death(self.plan):
            self.problems.append("the driver has died")
        over_ms = max((f.at_ms + f.for_ms + 50_000 for f in self.plan.faults), default=0)
        settled_s = max(sim.now_ns / NS_PER_S, over_ms / 1000) + _SETTLE_S
        self._until(settled_s)
        self.problems += leaks(self.cluster)
        if self.problems:
            if _stuck(waiting_on(self.cluster)):
                self.problems.clear()
            return
        if self.driver_lives:
            self.driver.finish_job(lambda _: None)
        self._until(settled_s + _GONE_S)
        self.problems += leaks(self.cluster)
        self.problems += [
            f"{p.address} outlives its job" for p in self.cluster.processes.values()
            if isinstance(p, CoreWorker) and p.job_id
        ]  # fmt: skip


def _stuck(waits: list[str]) -> bool:
    """Whether tasks wait for each other as they would in Ray."""
    known = any(ARGUMENTS_WAIT in line or EXIT_WAITS in line for line in waits)
    return known and not any("LOST" in w for w in waits)


def explained_death(plan: Plan) -> bool:
    """Whether a plan may end its driver."""
    return any(f.what in ("kill_driver", "kill_head_raylet") for f in plan.faults)


def play(plan: Plan, *, check: bool = True) -> Outcome:
    """Run a plan once."""
    return Run(plan, check=check).play()
