"""Starting, watching and ending a group of workers.

Real counterpart: ``execution/worker_group/worker_group.py`` and ``state.py``. A start is: one
placement group of equal bundles, waited for at most 60 s and then asked for again; the
synchronization actor on the controller's node; a worker in each bundle, all at once; ranks by node
(in the order nodes are first seen) and bundle; contexts; the backend's process group; the user's
function in a thread of each.

Rounds of calls between which nothing can happen (environment variables, rank 0's address) are
worked out: their calls cost the controller's thread, and no messages are sent.

Not modelled: partial repair (TorchFT's replica groups), label selectors, GPU ids of bundles (those
of a node are taken to rise with their bundles).
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.ids import NodeID, PlacementGroupID
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import (
    Script,
    drop,
    get,
    make_group,
    now,
    remove_group,
    sleep,
    wait,
    wait_group,
)  # fmt: skip
from raysim.raycore.tasks import ActorOptions, NodeAffinity, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.data.resources import Resources
from raysim.raylibs.train.datasets import DATASET_MANAGER
from raysim.raylibs.train.defaults import RUN_ENV
from raysim.raylibs.train.gang import Gang, PreemptionInfo
from raysim.raylibs.train.polls import Polls
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.reports import Checkpoint, WorkerStatus
from raysim.raylibs.train.storage import Store
from raysim.raylibs.train.sync_actor import SYNC_ACTOR
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker import Place, RayTrainWorker
from raysim.units import to_ns

START_TIMED_OUT = TaskError("GET_TIMEOUT", "WorkerGroupStartupTimeoutError")
ENVIRONMENT_ROUNDS = 2
"""``MASTER_ADDR`` and the ranks' variables (``torch/config.py``), each a call of every worker."""

WORKER = ActorClass(cls=RayTrainWorker, actor=ActorOptions(max_concurrency=4), runtime_env=RUN_ENV)
"""Its main thread answers one call at a time; a poll that waits must not keep others out."""


class WorkerGroup:
    """Of one attempt, in the controller."""

    def __init__(
        self, process: CoreProcess, spec: TrainerSpec, record: RunRecord, world_size: int
    ) -> None:
        self.process = process
        self.spec = spec
        self.record = record
        self.world_size = world_size
        store = Store(process.env, spec.run_config.storage)
        self.gang = Gang(process.env, record, world_size, store)
        self.workers: list[ActorHandle] = []
        """By rank, once ranks are assigned."""
        self.nodes: list[NodeID] = []
        self.polls = Polls(0, 1)
        self.also: list[Ref] = []
        """What else a poll waits for, and has not come."""
        self._over: dict[int, WorkerStatus | TaskError] = {}
        """Ranks whose thread has ended, or that have died."""
        self._sync: ActorHandle | None = None
        self._data: ActorHandle | None = None
        self._group: PlacementGroupID | None = None
        self._asked: dict[Ref, int] = {}
        """Polls under way, and of which rank."""
        self._told: PreemptionInfo | None = None
        self._polled_ns = -1
        """The last poll that found something."""
        self.rounds = 0
        """Placement groups that were waited for in vain."""

    # ---- start -----------------------------------------------------------------------------------

    def start(self, restored: Checkpoint | None, rounds: int) -> Script:
        """None, or the TaskError it failed with; whatever it made is then gone again.

        ``rounds``: how many placement groups are waited for, one after the other; all of them are
        played by one that stays.
        """
        asked_ns = yield now()
        self._phase("waiting", asked_ns)
        bundle = ResourceSet.of(self.spec.scaling_config.resources)
        strategy = self.spec.scaling_config.placement_strategy
        self._group = yield make_group([bundle] * self.world_size, strategy)
        patience_ns = to_ns(self.spec.defaults.worker_group_start_timeout_s)
        placed = yield wait_group(self._group, patience_ns * rounds)
        begin_ns = yield now()
        self.rounds = rounds if not placed else (begin_ns - asked_ns) // patience_ns
        self.record.group_waits += self.rounds
        if not placed:
            yield remove_group(self._group)
            return START_TIMED_OUT
        self._phase("restart" if self.record.attempts else "startup", begin_ns)
        self.record.began(begin_ns, self.world_size, restored.step if restored is not None else 0)
        here = NodeAffinity(node_id=self.process.me.node_id)
        self._sync = yield from SYNC_ACTOR.options(strategy=here).remote()
        error = yield from self._create_workers()
        if error is None:
            error = yield from self._init_contexts(restored)
        if error is not None:
            yield from self.end(graceful=False)
        return error

    def _phase(self, phase: str, at_ns: int) -> None:
        self.record.phase(at_ns, phase)

    def _create_workers(self) -> Script:
        assert self._group is not None, "workers without their placement group"
        resources = self.spec.scaling_config.resources
        made: list[ActorHandle] = []
        for i in range(self.world_size):
            here = WORKER.options(resources=resources).in_group(self._group, i)
            made.append((yield from here.remote(self.spec.import_core_s)))
        self.workers = made
        nodes = yield from self._all("get_metadata")
        if isinstance(nodes, TaskError):
            return nodes
        first: dict[NodeID, int] = {}
        for node_id in nodes:
            first.setdefault(node_id, len(first))
        order = sorted(range(len(made)), key=lambda i: (first[nodes[i]], i))
        self.workers = [made[i] for i in order]
        self.nodes = [nodes[i] for i in order]
        self.record.attempts[-1].nodes = tuple(first)
        return None

    def _init_contexts(self, restored: Checkpoint | None) -> Script:
        assert self._sync is not None, "contexts without the synchronization actor"
        spec, costs = self.spec, self.process.costs
        if spec.datasets:
            here = NodeAffinity(node_id=self.process.me.node_id)
            held = spec.scaling_config.resources
            self._data = yield from DATASET_MANAGER.options(strategy=here).remote(
                spec.datasets, tuple(self.nodes),
                Resources(held.get("CPU", 0.0), held.get("GPU", 0.0)).times(self.world_size),
            )  # fmt: skip
        node_ranks = {node_id: k for k, node_id in enumerate(dict.fromkeys(self.nodes))}
        local: dict[NodeID, int] = {}
        places = []
        for rank, node_id in enumerate(self.nodes):
            local[node_id] = local.get(node_id, -1) + 1
            places.append(
                Place(
                    gang=self.gang,
                    sync=self._sync,
                    rank=rank,
                    local_rank=local[node_id],
                    local_world_size=self.nodes.count(node_id),
                    node_rank=node_ranks[node_id],
                    restored=restored,
                    data=self._data,
                    run_name=spec.run_config.name,
                    backend_s=spec.process_group_s if self.world_size > 1 else 0.0,
                )
            )  # fmt: skip
        round_ns = costs.submit_actor_task_ns + costs.per_ref_get_ns
        yield sleep(ENVIRONMENT_ROUNDS * round_ns * self.world_size)
        answers = yield from self._all("init_train_context", each=places)
        if isinstance(answers, TaskError):
            return answers
        self._begin_polls((yield now()) + round_ns * self.world_size)
        answers = yield from self._all("run_train_fn", spec.function)
        if isinstance(answers, TaskError):
            return answers
        yield from self._poll_all()
        return None

    def _all(self, method: str, *args: Any, each: list[Any] | None = None) -> Script:
        """A call of every worker; the answers, or the first error."""
        refs: list[Ref] = []
        for i, worker in enumerate(self.workers):
            more = () if each is None else (each[i],)
            answer = yield worker.call(method, *args, *more)
            if isinstance(answer, TaskError):
                return answer
            refs += answer
        values = yield get(refs)
        yield drop(*refs)
        error = next((v for v in values if isinstance(v, TaskError)), None)
        return error or [v.data for v in values]

    # ---- polls -----------------------------------------------------------------------------------

    def _begin_polls(self, launched_ns: int) -> None:
        """A poll calls every worker and looks at every answer, and then the controller sleeps.

        The first is due when the function has been launched everywhere.
        """
        costs = self.process.costs
        each_ns = costs.submit_actor_task_ns + costs.get_ns
        there_ns = 2 * (costs.grpc_same_host_ns + costs.grpc_cross_host_extra_ns)
        poll_ns = self.world_size * each_ns + costs.wait_ns + there_ns + costs.execute_ns
        interval_ns = to_ns(self.spec.defaults.health_check_interval_s)
        self.polls = self.gang.polls = Polls(
            launched_ns + there_ns + costs.execute_ns, interval_ns + poll_ns
        )

    def _poll_all(self) -> Script:
        for rank in range(self.world_size):
            yield from self._ask(rank, taken=False)

    def _ask(self, rank: int, *, taken: bool) -> Script:
        refs = yield self.workers[rank].call("poll_status", taken, self._told)
        if not isinstance(refs, TaskError):
            self._asked[refs[0]] = rank

    @property
    def ended(self) -> bool:
        """Whether no rank runs any more."""
        return len(self._over) == self.world_size

    @property
    def finished(self) -> bool:
        """Whether every rank has returned."""
        fine = all(isinstance(s, WorkerStatus) and s.error is None for s in self._over.values())
        return self.ended and fine

    def poll(self, until_ns: int | None, also: Ref | None = None) -> Script:
        """Statuses by rank, at the first poll that finds any.

        Empty at the first after ``until_ns``, and once ``also`` has come.
        """
        limit_ns = None if until_ns is None else max(0, until_ns - (yield now()))
        self.also = [] if also is None else [also]
        found = yield wait([*self._asked, *self.also], 1, limit_ns)
        at_ns = yield now()
        if self.also and found.pop():
            self.also = []
        if not any(found):
            yield sleep(max(0, self.polls.at(at_ns) - at_ns))
            return {}
        ready = yield from self._answers(list(self._asked), found)
        since_ns = at_ns
        if all(isinstance(status, WorkerStatus) for status in ready.values()):
            since_ns = min(status.ready_ns for status in ready.values())
        poll_ns = self.polls.at(max(since_ns, self._polled_ns + 1))
        if poll_ns > at_ns:
            yield sleep(poll_ns - at_ns)
        self._polled_ns = poll_ns
        more = list(self._asked)
        if more:
            ready |= yield from self._answers(more, (yield wait(more, len(more), 0)))
        for rank, status in ready.items():
            if isinstance(status, WorkerStatus) and status.running:
                self._told = status.preemption or self._told
                yield from self._ask(rank, taken=status.report is not None)
            else:
                self._over[rank] = status
        return ready

    def _answers(self, refs: list[Ref], found: list[bool]) -> Script:
        """Of polls that were answered: statuses, or the death of a worker."""
        here = [ref for ref, is_here in zip(refs, found, strict=True) if is_here]
        ready: dict[int, WorkerStatus | TaskError] = {}
        for ref in here:
            values = yield get([ref])
            value = values if isinstance(values, TaskError) else values[0]
            ready[self._asked.pop(ref)] = value if isinstance(value, TaskError) else value.data
        if here:
            yield drop(*here)
        return ready

    # ---- end -------------------------------------------------------------------------------------

    def end(self, *, stuck: bool = False, graceful: bool = True) -> Script:
        """Shut down: the backend's hooks, the workers', then everything is killed.

        ``stuck``: some ranks stand in a collective of NCCL that one has left;
        ``destroy_process_group`` then waits as long as it may, and so do the workers' own hooks
        behind it (gloo's collectives fail at once). A dead worker lets the backend's hook fail at
        once.
        """
        self.gang.close("teardown")
        self._phase("teardown", (yield now()))
        if stuck:
            defaults = self.spec.defaults
            patience_s = defaults.process_group_shutdown_timeout_s + defaults.shutdown_patience_s
            yield sleep(to_ns(patience_s))
        elif graceful:
            costs = self.process.costs
            round_ns = (costs.submit_actor_task_ns + costs.per_ref_get_ns) * self.world_size
            yield sleep(2 * round_ns)
        if self._asked:
            yield drop(*self._asked)
            self._asked.clear()
        if self._data is not None:
            stats = yield from self._data.ask("shutdown")
            if not isinstance(stats, TaskError):
                self.record.data += [run for runs in stats.values() for run in runs]
            yield self._data.kill()
        for worker in self.workers:
            yield worker.kill()
        if self._sync is not None:
            yield self._sync.kill()
        if self._group is not None:
            yield remove_group(self._group)
