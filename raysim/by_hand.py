"""A Ray cluster by hand: for scripts that want to hold its parts, break them, and look at it.

What ``run`` plays from a scenario file, a script plays here itself: it makes the cluster, says what
happens to it when, runs functions that ``import ray``, and reads Ray's tables afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.branching import BASELINE, Branches
from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec, FabricSpec
from raysim.kernel.simulation import Simulation, what_exists_stays
from raysim.raycore import cluster as ray_core
from raysim.raycore.config import RayConfig
from raysim.raycore.faults import Faults
from raysim.raycore.ids import NodeID
from raysim.raycore.state_log import StateLog
from raysim.units import format_seconds, parse_seconds, to_ns

if TYPE_CHECKING:
    import pandas as pd

    from raysim.raystate.moment import Moment

FOR_LONG = "7d"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What became of a run."""

    value: Any = None
    """What the driver's function returned."""
    failure: str = ""
    """Why it did not end, in words; of a driver that hangs, where."""
    seen: Any = None
    """What ``look`` returned."""
    now_s: float = 0.0
    digest: str = ""
    """Of everything that happened."""


class Node:
    """One machine of a cluster, and what may happen to it: now, or ``sim.at("3h", node.fail)``."""

    def __init__(self, faults: Faults, node_id: NodeID) -> None:
        self._faults = faults
        self.node_id = node_id

    def __repr__(self) -> str:
        return f"node-{self.node_id}"

    def fail(self) -> None:
        """Power off: nobody is told."""
        self._faults.fail_node(self.node_id)

    def restart(self) -> None:
        """Power on again."""
        self._faults.restart_node(self.node_id)

    def preempt(self, notice: str = "2min") -> None:
        """A spot instance is taken back, after a notice."""
        self._faults.preempt(self.node_id, notice)

    def partition(self) -> None:
        """Nothing reaches it, until ``heal``."""
        self._faults.partition(self.node_id)

    def heal(self) -> None:
        """It is reached again."""
        self._faults.heal(self.node_id)

    def slow_links(self, share: float) -> None:
        """It keeps so much of its network bandwidth: 0.1 is a tenth."""
        self._faults.slow_links(self.node_id, share)

    def fill_disk(self, share: float = 1.0) -> None:
        """Others have filled so much of its disk."""
        self._faults.fill_disk(self.node_id, share)

    def kill_raylet(self) -> None:
        """SIGKILL to its raylet."""
        self._faults.kill_raylet(self.node_id)

    def kill_worker(self) -> None:
        """SIGKILL to the first worker process it has."""
        self._faults.kill_some_worker(self.node_id)


class Cluster:
    """A Ray cluster that a script holds in its hands.

    Parameters
    ----------
    spec
        Nodes and fabric; `build` makes one of a name of the catalog. The first node is the head.
    sim
        The run; one with seed 0 is made if none is given.
    config
        Ray's settings by name, as ``{"health_check_period_ms": 1000}``.

    Examples
    --------
    >>> import raysim
    >>> cluster = raysim.Cluster.build(nodes=3, node="m5.2xlarge")
    >>> def main(ray):
    ...     @ray.remote(max_retries=1)
    ...     def work(x):
    ...         import time
    ...         time.sleep(60)
    ...         return x * x
    ...     return sum(ray.get([work.remote(i) for i in range(24)]))
    >>> _ = cluster.sim.at("30s", cluster.nodes[2].fail)
    >>> cluster.run(main)
    4324
    >>> cluster.now_s > 120  # tasks of the lost node ran again
    True
    >>> cluster.frame("nodes").state.tolist()
    ['ALIVE', 'ALIVE', 'DEAD']
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        sim: Simulation | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.sim = sim or Simulation()
        self._log = StateLog()
        self._cluster = ray_core.Cluster(
            self.sim, spec, config=RayConfig(**(config or {})), log=self._log
        )
        self._faults = Faults(self._cluster)
        self.nodes = tuple(Node(self._faults, i) for i in range(len(self._cluster.env.nodes)))

    @classmethod
    def build(
        cls,
        sim: Simulation | None = None,
        *,
        nodes: int = 1,
        node: str = "m5.2xlarge",
        fabric: FabricSpec | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Cluster:
        """Equal nodes of the catalog.

        Raises
        ------
        ScenarioError
            The catalog has no such node.
        """
        return cls(ClusterSpec.of(node, nodes, fabric=fabric), sim=sim, config=config)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the cluster was made."""
        return self.sim.now_ns / 1e9

    def kill_gcs(self, restart_after: str | None = None) -> None:
        """SIGKILL to the GCS; with ``gcs_storage`` redis it can come back."""
        self._faults.kill_gcs(restart_after)

    def run(self, program: Callable[..., Any] | str | Path, *, limit: str = FOR_LONG) -> Any:
        """Run a driver to its end; virtual time pays for it.

        Parameters
        ----------
        program
            A function, given the module ``ray`` if it takes an argument, or a script's path.
        limit
            Virtual time after which it is given up.

        Returns
        -------
        Any
            What the function returns; None of a script.

        Raises
        ------
        ProgramHangs
            It waits for what can never happen, or longer than ``limit``.
        """
        from raysim.rayapi.loader import run_program, run_script

        limit_s = parse_seconds(limit)
        if not callable(program):
            run_script(program, cluster=self._cluster, limit_s=limit_s)
            return None
        return run_program(lambda: _called(program), self._cluster, limit_s=limit_s)[0]

    def what_if(
        self,
        program: Callable[..., Any] | str | Path,
        changes: Mapping[str, Callable[[], object]],
        *,
        at: str,
        look: Callable[[], Any] | None = None,
        limit: str = FOR_LONG,
        processes: int | None = None,
    ) -> dict[str, End]:
        """Run a driver, fork at a moment, and go on for every change, and without.

        This cluster then stands where the run without a change has come to.

        Parameters
        ----------
        program, limit
            As of `run`.
        changes
            By name, what happens at the moment: ``{"node 2 lost": cluster.nodes[2].fail}``.
        at
            The moment, such as ``"3h"``.
        look
            Called at the end of every branch; what it returns is `End.seen`.
        processes
            Branches that run at one time; by default as many as there are processors.

        Returns
        -------
        dict of str to End
            By name; what happens without a change is ``"baseline"``.

        Raises
        ------
        ScenarioError
            The driver ends before the moment, or has started threads; a change is named
            ``"baseline"``.

        Examples
        --------
        >>> import raysim, time
        >>> cluster = raysim.Cluster.build(nodes=2)
        >>> def main(ray):
        ...     @ray.remote
        ...     def nap():
        ...         time.sleep(60)
        ...     ray.get([nap.remote() for _ in range(16)])
        >>> ends = cluster.what_if(main, {"node 1 lost": cluster.nodes[1].fail}, at="30s")
        >>> ends["node 1 lost"].now_s > ends["baseline"].now_s + 60
        True
        """
        branches = Branches(list(changes), processes=processes)

        def split() -> None:
            name = branches.split()
            if name is not None:
                what_exists_stays(look=False)  # a look would copy every page of it
                self.sim.do(changes[name])

        pause = self.sim.pause_at(at, split)
        try:
            ends = {BASELINE: branches.play(lambda: self._end(program, limit, look, branches))}
        finally:
            self.sim.cancel(pause)
        if not branches.have_split:
            said = format_seconds(self.now_s)
            raise ScenarioError(f"at {at}: the driver has ended before, at {said}")
        for name, ending in branches.endings.items():
            ends[name] = ending.value or End(failure=ending.failure)
        return ends

    def _end(
        self,
        program: Callable[..., Any] | str | Path,
        limit: str,
        look: Callable[[], Any] | None,
        branches: Branches,
    ) -> End:
        """Run a driver; what it raises from the moment on is its end, and no other's."""
        value, failure = None, ""
        try:
            value = self.run(program, limit=limit)
        except Exception as error:
            if not branches.have_split:
                raise
            failure = f"{type(error).__name__}: {error}"
        return End(
            value=value, failure=failure, seen=None if look is None else look(), now_s=self.now_s,
            digest=self.sim.digest,
        )  # fmt: skip

    def status(self, at: str | None = None) -> str:
        """What ``ray status`` says, now or at an earlier time."""
        from raysim.results.ray.status import cluster_status, status_text

        return status_text(cluster_status(self._moment(at)))

    def frame(self, name: str, at: str | None = None) -> pd.DataFrame:
        """``ray list NAME --detail``: tasks, actors, objects, nodes, workers, placement_groups."""
        from raysim.results.ray.listing import frame

        return frame(self._moment(at), name)

    def _moment(self, at: str | None) -> Moment:
        from raysim.raystate.moment import moment

        return moment(self._log.rows, self.sim.now_ns if at is None else to_ns(parse_seconds(at)))


def _called(program: Callable[..., Any]) -> Any:
    from raysim.rayapi import api as ray

    return program(ray) if inspect.signature(program).parameters else program()
