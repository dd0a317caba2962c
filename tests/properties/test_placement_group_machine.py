"""Random lives of placement groups: nodes come and die, groups are made and removed, the GCS too.

Whatever happens: raylets never hold more than they have, no group is ever half committed for good,
and when things have calmed down every group is there, removed, or waiting for what is not there.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raysim.kernel.component import NodeDied, Reply
from raysim.raycore.config import RayConfig
from raysim.raycore.gcs.bundle_policies import place
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    GCS,
    Bundle,
    CancelResourceReserve,
    CommitBundleResources,
    CreatePlacementGroup,
    PrepareBundleResources,
    RegisterNode,
    RemovePlacementGroup,
    ReportResources,
    UnregisterNode,
    WaitPlacementGroupUntilReady,
)
from raysim.raycore.resources import UNIT, ResourceSet
from tests.unit.raycore.gcs_case import GcsCase, Peer, ScriptedRaylet

MOST_NODES = 5
LATENCY_NS = 2_000_000


class CountingRaylet(ScriptedRaylet):
    """Holds bundles against its own CPUs, and reports every 100 ms when something changed."""

    def __init__(self, case: GcsCase, node_id: NodeID, cpus: int) -> None:
        super().__init__(case, node_id)
        self.cpus = cpus
        self.held: dict[tuple[int, int], int] = {}

    def started(self) -> None:
        self.bundles, self.held = {}, {}
        self.dirty = False
        self.client = GcsClient(self, self.case.env, lambda: None)
        total = {"CPU": self.cpus * UNIT}
        is_head = self.node_id == 0
        here = RegisterNode(self.node_id, self.address, total, {}, is_head, incarnation=self.epoch)
        self.client.tell(here)

    @property
    def free(self) -> int:
        return self.cpus * UNIT - sum(self.held.values())

    def _changed(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.after(100_000_000, self._report)

    def _report(self, _: object) -> None:
        self.dirty = False
        total = {"CPU": self.cpus * UNIT}
        report = ReportResources(self.node_id, 0, {"CPU": self.free}, total, False, False, -1)
        if self.client.away or self.case.gcs.state != "up":
            self._changed()  # a broken stream is resumed with the present state
        else:
            self.send(GCS, report)

    def on_prepare_bundle_resources(self, m: PrepareBundleResources, reply: Reply) -> None:
        wanted = {(b.group, b.bundle_index): b.resources.units["CPU"] for b in m.bundles}
        if sum(n for key, n in wanted.items() if key not in self.held) > self.free:
            reply(False)
            return
        self.held |= wanted
        self.bundles |= dict.fromkeys(wanted, "prepared")
        self._changed()
        reply(True)

    def on_commit_bundle_resources(self, m: CommitBundleResources, reply: Reply) -> None:
        for b in m.bundles:
            key = (b.group, b.bundle_index)
            assert key in self.bundles, f"{key} is committed on {self.address}, never prepared"
            self.bundles[key] = "committed"
        reply(True)

    def on_cancel_resource_reserve(self, m: CancelResourceReserve, reply: Reply) -> None:
        for b in m.bundles:
            self.bundles.pop((b.group, b.bundle_index), None)
            self.held.pop((b.group, b.bundle_index), None)
        self._changed()
        reply()


class PlacementGroupMachine(RuleBasedStateMachine):
    """One cluster under a driver that does not sit still."""

    @initialize(cpus=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def begin(self, cpus: list[int]) -> None:
        self.case = GcsCase(nodes=0, config=RayConfig(gcs_storage="redis"))
        self.case.sim.transport.latency_ns = LATENCY_NS  # type: ignore[attr-defined]
        self.now_s = 0.0
        self.raylets: dict[NodeID, CountingRaylet] = {}
        self.me: Peer = self.case.me
        self.client = GcsClient(self.me, self.case.env, lambda: None)
        self.groups: dict[int, CreatePlacementGroup] = {}
        self.removed: dict[int, None] = {}
        self.ready: dict[int, list[bool]] = {}
        for n in cpus:
            self.node_joins(n)

    def _run(self, seconds: float) -> None:
        self.now_s += seconds
        self.case.run(self.now_s)

    # Nodes

    @precondition(lambda self: len(self.raylets) < MOST_NODES)
    @rule(cpus=st.integers(1, 4))
    def node_joins(self, cpus: int) -> None:
        node_id = len(self.raylets)
        self.raylets[node_id] = self.case.sim.add(CountingRaylet(self.case, node_id, cpus))

    def _up(self, pick: int) -> CountingRaylet | None:
        up = [r for r in self.raylets.values() if r.state == "up"]
        return up[pick % len(up)] if up else None

    @rule(pick=st.integers(0, 9), silent=st.booleans())
    def node_dies(self, pick: int, silent: bool) -> None:
        its = self._up(pick)
        if its is not None:
            cause = NodeDied(address=its.address, node=f"node-{its.node_id}")
            its.crash(cause, silent=silent)
            self.case.reach(its.node_id, "silent" if silent else "refuses")

    @rule(pick=st.integers(0, 9))
    def node_leaves(self, pick: int) -> None:
        its = self._up(pick)
        if its is not None:
            self.case.me.send(GCS, UnregisterNode(its.node_id, "drained"))
            its.crash(reason="left")
            self.case.reach(its.node_id, "refuses")

    @rule(pick=st.integers(0, 9))
    def node_returns(self, pick: int) -> None:
        down = [r for r in self.raylets.values() if r.state != "up"]
        if down:
            self._run(0.01)  # what was on its way when it died has arrived or is lost
            down[pick % len(down)].start()
            self._run(0.01)

    # Groups

    @rule(
        strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
        cpus=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    )
    def create(self, strategy: str, cpus: list[int]) -> None:
        group = len(self.groups) + 1
        bundles = tuple(Bundle(group, i, ResourceSet.of({"CPU": n})) for i, n in enumerate(cpus))
        spec = CreatePlacementGroup(
            group, bundles, strategy, "", "ns", 1, self.case.address_of(self.me), 0, False
        )
        self.groups[group] = spec
        self.ready[group] = []
        self.client.tell(spec)
        self.client.call(WaitPlacementGroupUntilReady(group), self.ready[group].append)

    @precondition(lambda self: self.groups)
    @rule(pick=st.integers(0, 99))
    def remove(self, pick: int) -> None:
        group = pick % len(self.groups) + 1
        self.removed[group] = None
        self.client.tell(RemovePlacementGroup(group))

    # Time, and the GCS

    @rule(ms=st.integers(1, 30))
    def a_moment_passes(self, ms: int) -> None:
        self._run(ms / 1e3)

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        self._run(seconds)

    @rule(ms=st.integers(1, 2_000))
    def gcs_restarts(self, ms: int) -> None:
        self.case.gcs.crash(reason="killed")
        self._run(ms / 1e3)
        self.case.gcs.restart()
        for its in self.raylets.values():
            if its.state != "up":
                self.case.reach(its.node_id, "refuses")

    # What must always hold

    @invariant()
    def raylets_hold_no_more_than_they_have(self) -> None:
        for its in getattr(self, "raylets", {}).values():
            assert its.free >= 0, f"{its.address} holds {its.held} of {its.cpus} CPUs"

    def teardown(self) -> None:
        if not hasattr(self, "case"):
            return
        self._run(200)
        tables = self.case.gcs.tables
        alive = {i: r for i, r in self.raylets.items() if r.state == "up"}
        assert sorted(tables.nodes) == sorted(alive)
        expected: dict[NodeID, dict[tuple[int, int], str]] = {i: {} for i in alive}
        waiting = [g.spec.group for g in self.case.gcs.groups.waiting()]
        for group in self.groups:
            if group in self.removed:
                assert group in tables.removed_groups, f"group {group} was not removed"
                assert len(self.ready[group]) == 1
                continue
            row = tables.groups[group]
            if row.state == "CREATED":
                assert self.ready[group] == [True]
            else:
                self._waits_rightly(row, waiting)
            for i, node_id in enumerate(row.nodes):
                if node_id >= 0:
                    expected[node_id][group, i] = "committed"
        assert {i: its.bundles for i, its in alive.items()} == expected
        for i, its in alive.items():
            assert tables.nodes[i].available.get("CPU", 0) == its.free

    def _waits_rightly(self, row: Any, waiting: list[int]) -> None:
        """It is reported as waiting, and there is indeed no room for it."""
        spec = row.spec
        assert spec.group in waiting, f"group {spec.group} is {row.state} and in no queue"
        missing = [spec.bundles[i] for i in row.unplaced()]
        nodes = list(self.case.gcs.tables.nodes.values())
        chosen = place(spec.strategy, missing, nodes, in_use=frozenset(row.nodes))
        assert chosen in ("FAILED", "INFEASIBLE"), f"group {spec.group} could be on {chosen}"


TestPlacementGroups = PlacementGroupMachine.TestCase
TestPlacementGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
