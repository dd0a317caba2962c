"""One run of programs on one emulated cluster: the driver, its processes, the hub.

Real counterpart: the processes of a Ray session as the operating system sees them.

The hub is the greenlet that calls ``run``: it plays the simulation and resumes programs when their
answers come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet
from simpy.events import Event

from raysim.errors import RaysimError
from raysim.perf.constants import TrainingConstants
from raysim.rayapi.compute import Compute, pay_for_compute
from raysim.rayapi.enough import Enough
from raysim.rayapi.fibers import HUB, Fiber, let_go
from raysim.rayapi.process_state import ENVIRON, ProcessState, restored_environment
from raysim.rayapi.randomness import seeded_globals
from raysim.rayapi.runtime_env import made_importable
from raysim.rayapi.standins import nvidia_smi
from raysim.raycore.ids import JobID, WorkerID

if TYPE_CHECKING:
    from raysim.kernel.clock import Handle
    from raysim.kernel.simulation import Simulation
    from raysim.raycore.process import CoreProcess
    from raysim.raycore.room import Surroundings
    from raysim.raycore.tasks import TaskSpec


class _Finishes(Protocol):
    def finish(self) -> None:
        """The driver leaves."""


T = TypeVar("T", bound=_Finishes)


class ProgramHangs(RaysimError):  # noqa: N818  (it says what the program does)
    """The program waits for something that can never happen, or has used up its time.

    Parameters
    ----------
    message
        What is known, and where it waits.
    certain
        Nothing was left to happen but what repeats itself; else the limit was reached.
    enough
        Why it was stopped though it waits for nothing: it has taken as many steps as it needs to.
    """

    def __init__(self, message: str, *, certain: bool = False, enough: str = "") -> None:
        super().__init__(message)
        self.certain = certain
        self.enough = enough


class DriverDied(RaysimError):  # noqa: N818  (as above)
    """The driver's process has been killed, or its node is gone; says how."""


_LOOK_EVERY = 256
"""Processes between two looks at which of them have died."""

LIMIT_S = 7 * 86_400.0
"""A week: longer than most programs, and short enough to play while everybody waits."""

QUIET_NS = 1_800 * 10**9
"""Half an hour in which nothing happens but what repeats itself: longer than any period, retry or
time limit in Ray (the autoscaler's idle time, 5 minutes, is the longest)."""
_TWICE = 2
_VISIBLE = ENVIRON.encodekey("CUDA_VISIBLE_DEVICES")
_CROWD = 10_000
"""Where as much is pending, something goes on."""

ClusterFactory = Callable[[dict[str, Any]], Any]


class Session:
    """Runs drivers on a cluster.

    Parameters
    ----------
    cluster
        Has ``sim``, ``env`` and ``driver(then)``; or a function of ``ray.init``'s arguments that
        makes one: then every ``ray.init`` gets a cluster of its own, as on a laptop.
    compute
        How user code is charged; as declared by default.
    limit_s
        Virtual time after which a driver that still waits is given up.
    training
        What a profile says of GPUs and hosts, for the steps of training loops.
    last
        Nobody goes on with the cluster after ``run``: whatever waits then is unwound.
    steps
        Of a training run, after which the program is stopped (``Enough``).
    """

    def __init__(
        self, cluster: Any, *, compute: Compute | None = None, limit_s: float = LIMIT_S,
        training: TrainingConstants | None = None, last: bool = False, steps: int | None = 0,
    ) -> None:  # fmt: skip
        self.training = training or TrainingConstants()
        self.enough = Enough(steps)
        self.last = last
        self._make: ClusterFactory | None = cluster if callable(cluster) else None
        self.cluster: Any = None if callable(cluster) else cluster
        self.compute = compute or Compute()
        self.settle_compute = pay_for_compute
        self.processes: dict[WorkerID, ProcessState] = {}
        self.jobs: dict[JobID, dict[str, Any]] = {}
        """Namespace and runtime environment of each."""
        self.hub: Any = getcurrent()
        self.outside: Any = ENVIRON._data  # noqa: SLF001  (as in ProcessState.enter)
        """The environment of whoever runs the simulation."""
        self.environ: dict[Any, Any] = dict(self.outside)
        """What a new process finds in its environment: its raylet's."""
        self.greenlets: list[Any] = []  # that have run a fiber and can run another
        self.fibers: dict[Fiber, None] = {}  # that have begun and are not over
        self.base_ns = 0
        """Time of clusters that are gone."""
        self.limit_s = limit_s
        self._stop: Any = None
        self._handover = False
        self._hangs: ProgramHangs | DriverDied | None = None
        self.slices = 0  # how often a program has been resumed
        self._seen: tuple[Any, dict[int, Any]] | None = None
        """At the last look: how much had happened, and what was pending."""
        self._quiet = 0
        """Looks in a row that saw nothing happen."""
        self._hosted: Any = None
        """A driver that is not a fiber of its own, and what to call before it gets an error."""
        self._looks: Any = None
        """When it looks next."""
        self.exports: dict[Any, Any] = {}  # what has been pickled, by function or class
        self.bodies: list[Any] = []  # of functions and methods that tasks run
        self.actor_classes: set[Any] = set()  # of handles that have been pickled
        self.submitted: Any = None  # the server of the jobs API, once somebody has used it
        self.at_end: list[Callable[[], object]] = []  # called when the driver leaves
        self.unfinished: dict[Any, Callable[[], object]] = {}
        """Training runs, and what reports of one that is stopped before its end."""
        self.waiting: Callable[[], Fiber] | None = None
        """Whose place is told of a program that hangs, if its driver waits for others."""
        self.libraries: dict[str, Any] = {}
        """What Ray's libraries keep of this run, each under its name."""

    def library(self, name: str, make: Callable[[Session], T]) -> T:
        """What one keeps, made where it is first asked for; it finishes as the driver leaves."""
        if name not in self.libraries:
            made = self.libraries[name] = make(self)
            self.at_end.append(made.finish)
        kept: T = self.libraries[name]
        return kept

    @property
    def sim(self) -> Simulation:
        """The simulation, once there is a cluster."""
        sim: Simulation = self.cluster.sim
        return sim

    @property
    def env(self) -> Surroundings:
        """The cluster's surroundings."""
        env: Surroundings = self.cluster.env
        return env

    @property
    def now_ns(self) -> int:
        """Since the session began."""
        return self.base_ns + (self.cluster.sim.now_ns if self.cluster is not None else 0)

    def run(self, main: Callable[[], Any]) -> Any:
        """Run a driver to its end; what it returns.

        Raises
        ------
        ProgramHangs
            The driver has not ended within the limit.
        DriverDied
            Its process is gone.
        """
        seed = 0 if self.cluster is None else self.sim.rng.seed
        with self._nvidia_smi():
            state = self._begin(getcurrent())
            fiber = Fiber(state, None, lambda: self._driver(state, main), self._ended, "driver")
            try:
                with seeded_globals(seed), restored_environment():
                    fiber.start()
                    self._serve(fiber)
            finally:
                let_go([f for f in self.fibers if self.last or f.process.gone])
                if self.last:
                    for body in self.bodies:
                        body.forget()
        if fiber.error is not None:
            raise fiber.error
        return fiber.result

    def _nvidia_smi(self) -> AbstractContextManager[None]:
        """What programs of the nodes' start; of the first that have GPUs."""
        nodes = () if self.cluster is None else self.cluster.spec.gpu_nodes
        if not nodes:
            return nullcontext()
        gpu = nodes[0].gpu
        return nvidia_smi.on_path({
            "name": gpu.name, "mib": gpu.memory_bytes >> 20, "watts": gpu.tdp_w,
            "capability": f"{gpu.compute_capability:.1f}", "count": nodes[0].gpu_count,
        })  # fmt: skip

    def host(self, *, failed: Callable[[], object]) -> Callable[[], None]:
        """Make whoever calls the driver, from here on; the hub is a greenlet beside it.

        Parameters
        ----------
        failed
            Called before an error of the hub (``ProgramHangs``) is raised in the driver.

        Returns
        -------
        Callable
            What ends it.
        """
        state = self._begin(greenlet(self._beside))
        fiber = Fiber(state, None, None, None, "driver")
        self._hosted = fiber, failed
        fiber.greenlet = getcurrent()

        def end() -> None:
            fiber.over = True
            if HUB.current is fiber:
                HUB.current = None
                state.leave(fiber)
            if getcurrent() is not self.hub:
                self.hub.throw(GreenletExit)

        HUB.current = fiber
        state.enter(fiber)
        return end

    def _beside(self) -> None:
        """What the hub of a hosted driver does, from when that waits for the first time."""
        fiber, failed = self._hosted
        HUB.current = None
        fiber.process.leave(fiber)
        try:
            self._serve(fiber)
        except GreenletExit:
            raise
        except BaseException:
            failed()
            raise

    def _begin(self, hub: Any) -> ProcessState:
        """The driver's process, with the environment as it is now."""
        self.hub = hub
        self.greenlets.clear()
        self.outside = ENVIRON._data  # noqa: SLF001  (as in ProcessState.enter)
        self.environ = dict(self.outside)
        return ProcessState(self, None, is_driver=True)

    def _serve(self, fiber: Fiber) -> None:
        """Play the simulation until the driver has ended."""
        while not fiber.over:
            if self._handover:
                self._handover = False
                fiber.resume()
            else:
                self._play(fiber)

    def _play(self, fiber: Fiber) -> None:
        sim = self.sim
        self._stop = Event(sim.clock)
        self._seen, self._quiet = None, 0
        limit = sim.call_later(round(self.limit_s * 1e9), self._too_long, fiber)
        self._looks = sim.call_later(QUIET_NS, self._look, (fiber, limit))
        sim.run(self._stop)
        sim.cancel(limit)
        sim.cancel(self._looks)
        if self._hangs is not None:
            for report in self.unfinished.values():
                report()
            raise self._hangs

    def stop_here(self, why: str) -> None:
        """The program has shown enough, as of now: the fiber that says so goes no further."""
        self.sim.call_later(0, self._enough, why)
        if HUB.current is not None:
            HUB.current.sleep(1)

    def _enough(self, why: str) -> None:
        self._hangs = ProgramHangs(why, enough=why)
        self._stop.succeed()

    def _too_long(self, fiber: Fiber) -> None:
        self._give_up(
            f"after {self.now_ns / 1e9:g} s of virtual time the program still waits, perhaps for "
            "something that will never happen (raise limit_s if it may take longer)", fiber,
        )  # fmt: skip

    def _look(self, looking: tuple[Fiber, Handle]) -> None:
        """Give up if nothing has happened since the last look, and nothing is left that could.

        Nothing has: no program ran, no room wrote a row. Nothing could: all that was pending then
        is over, so what is pending now (timers of the GCS, of the autoscaler) repeats itself; a
        sleep, a timeout, a fault to come or a transfer would still be there. Twice in a row: what
        was over may have happened a moment ago (a node lost power, nobody knows yet).
        """
        fiber, limit = looking
        pending = {id(x): x for x in islice(self.sim.pending(), _CROWD) if x is not limit}
        so_far = len(self.env.log.rows), self.slices
        quiet = (
            self._seen is not None
            and self._seen[0] == so_far
            and self.env.log.enabled
            and len(pending) < _CROWD - 1
            and pending.keys().isdisjoint(self._seen[1])
        )
        self._quiet = self._quiet + 1 if quiet else 0
        if self._quiet == _TWICE:
            since_s = (self.now_ns - _TWICE * QUIET_NS) / 1e9
            said = f"nothing has happened since {since_s:g} s of virtual time or before, and"
            self._give_up(f"{said} nothing is left that could", fiber, certain=True)
            return
        self._seen = so_far, pending
        self._looks = self.sim.call_later(QUIET_NS, self._look, looking)

    def _give_up(self, why: str, fiber: Fiber, *, certain: bool = False) -> None:
        fiber = self.waiting() if self.waiting is not None else fiber
        self._hangs = ProgramHangs(f"{why}; {_where(fiber)}", certain=certain)
        self._stop.succeed()

    def _ended(self, _fiber: Fiber) -> None:
        if self._stop is not None and not self._stop.triggered:
            self._stop.succeed()

    def _driver(self, state: ProcessState, main: Callable[[], Any]) -> Any:
        fiber = HUB.current
        assert fiber is not None
        try:
            return main()
        finally:
            if state.core is not None and not fiber.collected:
                self.pay_to_the_end(fiber)
                for finish in self.at_end:
                    finish()
                self.disconnect(fiber)

    def pay_to_the_end(self, fiber: Fiber) -> None:
        """A driver's own code since its last call of Ray takes its time too."""
        if self.compute.running and not fiber.depth:
            self.compute.end(fiber)
            self.settle_compute(fiber)

    # ray.init and ray.shutdown

    def connect(self, fiber: Fiber, request: dict[str, Any]) -> None:
        """Become a driver of the cluster."""
        state = fiber.process
        if self.cluster is None:
            assert self._make is not None
            self.cluster = self._make(request)
            self.environ = dict(state.environ)  # ray.init() has started the raylet
        elif (seen := state.environ.get(_VISIBLE)) is not None:
            self.environ.setdefault(_VISIBLE, seen)  # ``ray.init()`` without an address starts Ray
        lead_ns = fiber.take_lead()

        def start(then: Callable[[Any], object]) -> None:
            driver = self.cluster.driver(then, node_id=state.home)
            state.namespace = request.get("namespace") or f"anonymous-{driver.job_id}"
            driver.namespace = state.namespace
            driver.at_exit(partial(self._died, state))

        core: CoreProcess = fiber.block(start)
        state.core = core
        fiber.lead_ns += lead_ns
        state.runtime_env = {**state.runtime_env, **(request.get("runtime_env") or {})}
        state.env_key = json.dumps(state.runtime_env, sort_keys=True, default=repr)
        self.processes[core.me.worker_id] = state
        self.jobs[core.job_id] = {
            "namespace": state.namespace, "runtime_env": state.runtime_env, "sink": state.sink,
        }  # fmt: skip

    def _died(self, state: ProcessState, reason: str) -> None:
        """A driver's process is gone, and what it ran with it."""
        if state.program is not None:
            state.program.died(reason)
        elif self._stop is not None and not self._stop.triggered:
            self._hangs = DriverDied(f"the driver's process is gone: {reason}")
            self._stop.succeed()

    def disconnect(self, fiber: Fiber) -> None:
        """The driver leaves; a cluster of its own ends with it."""
        state = fiber.process
        core: Any = state.core
        fiber.settle()
        fiber.block(core.finish_job)
        self.processes.pop(core.me.worker_id, None)
        state.core = None
        state.handles.clear()
        self.exports.clear()
        HUB.drops.clear()
        if self._make is not None:
            self.base_ns += self.sim.now_ns
            self._leave(fiber)
            self.cluster = None
            self.processes.clear()

    def _leave(self, fiber: Fiber) -> None:
        """Go on outside the simulation, so that another can be made."""

        def stop(_then: Any) -> None:
            self._handover = True
            self._stop.succeed()

        if self._stop is not None and not self._stop.triggered:
            fiber.block(stop)

    # processes

    def process_of(self, core: CoreProcess, spec: TaskSpec) -> ProcessState:
        """The memory of a worker process that runs this task; empty at first."""
        state = self.processes.get(core.me.worker_id)
        if state is None:
            if len(self.processes) % _LOOK_EVERY == _LOOK_EVERY - 1:
                self.processes = {k: s for k, s in self.processes.items() if not s.gone}
            state = ProcessState(self, core, is_driver=False)
            job = self.jobs.get(spec.job_id, {})
            state.namespace, state.sink = job.get("namespace", ""), job.get("sink")
            env = spec.options.runtime_env
            if env is not None:
                state.env_key = env.key
                state.runtime_env = json.loads(env.key)
                for name, value in (state.runtime_env.get("env_vars") or {}).items():
                    state.set_env(name, value)
                state.cwd = made_importable(state.runtime_env)
            worker: Any = core
            worker.namespace = state.namespace
            self.processes[core.me.worker_id] = state
        return state


def _where(fiber: Fiber) -> str:
    """Where a driver waits, as a traceback of its greenlet."""
    import traceback

    frame = fiber.greenlet.gr_frame
    stack = [f for f in traceback.extract_stack(frame) if "/raysim/rayapi/" not in f.filename]
    where = "".join(traceback.format_list(stack[-3:]))
    return f"it waits here:\n{where}"
