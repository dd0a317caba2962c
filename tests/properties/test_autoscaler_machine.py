"""Random lives of an autoscaled cluster: demand comes and goes, machines come late, refuse or die.

Whatever happens: no type and no cluster above its most, a machine belongs to one instance, what was
asked for is there, coming, refused or given back; and when demand stays as it is the cluster does
too: nothing is launched to be ended again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raysim.raycore.autoscaler import Autoscaler, AutoscalerConfig, NodeTypeConfig
from raysim.raycore.protocol import DrainRaylet, ResourceDemand, UnregisterNode
from raysim.raycore.resources import ResourceSet
from tests.unit.raycore.gcs_case import GcsCase

CPUS = {"small": 2, "big": 8}
MOST = {"small": 4, "big": 2}
MOST_OF_ALL = 5
IDLE_S = 20.0


class Provider:
    """Machines that come when the machine of rules lets them."""

    def __init__(self, case: GcsCase) -> None:
        self.case = case
        self.asked: list[tuple[str, Callable[[Any], object]]] = []
        self.there: dict[int, str] = {}
        """Listed."""
        self.up: dict[int, None] = {}
        self.counts = {"asked": 0, "refused": 0, "ended": 0}

    def launch(self, node_type: str, then: Callable[[Any], object]) -> None:
        self.asked.append((node_type, then))
        self.counts["asked"] += 1

    def machines(self) -> dict[int, str]:
        return self.there

    def runs(self, node_id: int) -> bool:
        return node_id in self.there

    def terminate(self, node_id: int) -> None:
        assert node_id in self.there, f"machine {node_id} is ended twice"
        del self.there[node_id]
        self.counts["ended"] += 1
        if self.up.pop(node_id, 0) is None and self.case.gcs.nodes.alive(node_id):
            self.case.kill_raylet(node_id)


class AutoscalerMachine(RuleBasedStateMachine):
    """Drives the loop."""

    @initialize(
        version=st.sampled_from(["v1", "v2"]), speed=st.sampled_from([0.0, 1.0, 1000.0]),
        kuberay=st.booleans(),
    )  # fmt: skip
    def begin(self, version: Any, speed: float, kuberay: bool) -> None:
        self.case = GcsCase(nodes=1, cpus=0, check=False)
        self.provider = Provider(self.case)
        types = tuple(
            NodeTypeConfig(name=t, resources={"CPU": n}, max_workers=MOST[t])
            for t, n in CPUS.items()
        )
        config = AutoscalerConfig(
            node_types=types, max_workers=MOST_OF_ALL, upscaling_speed=speed, kuberay=kuberay,
            idle_timeout_s=IDLE_S, version=version,
        )  # fmt: skip
        self.loop = self.case.sim.add(Autoscaler(self.case.env, config, provider=self.provider))
        self.now_s, self.next_id, self.waiting = 0.0, 100, 0
        self.case.run(0.1)

    def run_for(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            self.now_s += min(seconds, 1.0)
            self.case.run(self.now_s)
            for node_id, its in self.case.raylets.items():
                if its.of(DrainRaylet) and self.case.gcs.nodes.alive(node_id):
                    its.ask(UnregisterNode(node_id, "drained"))
                    self.provider.up.pop(node_id, None)

    @rule(n=st.integers(0, 40))
    def want(self, n: int) -> None:
        self.waiting = n
        one = ResourceSet.of({"CPU": 1})
        self.case.raylets[0].load = (ResourceDemand(one, n),) if n else ()
        self.case.env.changes.count(0)  # as a raylet does whenever what waits there changes
        self.case.report(0, cpus=0, total=0, waiting=bool(n))
        self.report_idle()

    def report_idle(self) -> None:
        for node_id in self.provider.up:
            if self.case.gcs.nodes.alive(node_id):
                cpus = CPUS[self.provider.there[node_id]]
                since_ns = -1 if self.waiting else self.case.sim.now_ns
                self.case.report(node_id, cpus=cpus, idle_since_ns=since_ns)

    @rule(seconds=st.sampled_from([1, 5, 12, 40]))
    def time_goes_by(self, seconds: int) -> None:
        self.run_for(seconds)

    @rule(how_many=st.integers(1, 3))
    def the_cloud_answers(self, how_many: int) -> None:
        for node_type, then in self.provider.asked[:how_many]:
            self.provider.there[self.next_id] = node_type
            then(self.next_id)
            self.next_id += 1
        del self.provider.asked[:how_many]

    @rule()
    def the_cloud_refuses(self) -> None:
        for _, then in self.provider.asked[:1]:
            then(None)
            self.provider.counts["refused"] += 1
        del self.provider.asked[:1]

    @rule()
    def ray_starts(self) -> None:
        for node_id, node_type in self.provider.there.items():
            if node_id not in self.case.raylets:
                self.provider.up[node_id] = None
                self.case.add_node(node_id, cpus=CPUS[node_type], node_type=node_type)
        self.report_idle()

    @rule()
    def a_node_dies(self) -> None:
        for node_id in list(self.provider.up)[:1]:
            del self.provider.up[node_id]
            self.case.kill_raylet(node_id)

    @invariant()
    def never_above_the_most(self) -> None:
        wanted = [
            i for i in self.loop.instances.values()
            if not i.is_head and i.status in ("QUEUED", "REQUESTED", "ALLOCATED",
                                              "RAY_INSTALLING", "RAY_RUNNING")
        ]  # fmt: skip
        assert len(wanted) <= MOST_OF_ALL
        for node_type, most in MOST.items():
            assert sum(i.node_type == node_type for i in wanted) <= most

    @invariant()
    def a_machine_has_one_instance(self) -> None:
        held = [i.node_id for i in self.loop.instances.values() if i.node_id >= 0]
        assert len(held) == len(set(held))

    @invariant()
    def nothing_asked_for_is_forgotten(self) -> None:
        counts, provider = self.provider.counts, self.provider
        open_now = len(provider.asked) + len(provider.there)
        assert counts["asked"] == open_now + counts["refused"] + counts["ended"]

    def teardown(self) -> None:
        """When all comes that was asked for and demand stays, so does the cluster."""
        if not hasattr(self, "case"):
            return
        for _ in range(30):
            self.the_cloud_answers(99)
            self.ray_starts()
            self.run_for(10)
        self.run_for(3 * IDLE_S)  # ``ray_starts`` says anew since when nodes are idle
        before = dict(self.provider.counts)
        self.run_for(60)
        assert self.provider.counts == before, "it thrashes"
        cpus = sum(CPUS[self.provider.there[n]] for n in self.provider.up)
        most = 8 * 2 + 2 * 3  # five nodes, two of them big
        if self.waiting:
            # Small ones that came for what a big one was refused for are not exchanged for it.
            assert cpus >= min(self.waiting, most) or len(self.provider.up) == MOST_OF_ALL
        else:
            assert cpus == 0


TestAutoscalerMachine = AutoscalerMachine.TestCase
TestAutoscalerMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
