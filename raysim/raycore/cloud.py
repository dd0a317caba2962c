"""The cloud: machines that are asked for, come after a while, and are taken back.

Real counterparts: a provider of ``ray up`` (``autoscaler/_private/aws`` and others), which asks for
an instance and installs Ray over SSH; KubeRay's operator, which makes a pod, and Kubernetes, which
finds or adds a machine for it and pulls its image. A request goes through named phases::

    request -> (ALLOCATED) -> provision -> image_pull -> ray_install -> ray_start

each a lognormal delay drawn from a stream of its own, so that a change of one leaves the others as
they were. The raylet registers after the last.

A type may be out of stock for a while: a VM is then refused at once, a pod waits for its machine.

Not modelled: quotas, prices that move, several zones, machines that come up broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from raysim.kernel.clock import Handle
from raysim.kernel.simulation import Simulation
from raysim.raycore.ids import NodeID
from raysim.units import NS_PER_S, to_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A lognormal time: its median, and the standard deviation of its logarithm."""

    median_s: float
    sigma: float = 0.0

    @classmethod
    def between(cls, low_s: float, high_s: float) -> Delay:
        """Nine of ten lie between these."""
        return cls(
            median_s=math.sqrt(low_s * high_s), sigma=math.log(high_s / low_s) / (2 * _P95_SD)
        )


_P95_SD = 1.6449
"""Standard deviations from the mean of a normal distribution to its 95th percentile."""
NOTHING = Delay(median_s=0.0)
_VM_REQUEST = Delay.between(1, 5)
_VM_BOOT = Delay.between(40, 90)
_VM_SETUP = Delay.between(10, 60)
_RAY_START = Delay.between(5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStart:
    """From the wish for a machine to its raylet.

    Defaults: a VM from an image that has Ray. General knowledge, assumed: 40-180 s in all, most of
    it boot (40-90 s until SSH answers); ``ray start`` takes 5-10 s.
    """

    request: Delay = _VM_REQUEST
    """Until the cloud's list shows it."""
    provision: Delay = _VM_BOOT
    """Until the machine runs; of a pod, until it has one that does."""
    image_pull: Delay = NOTHING
    ray_install: Delay = _VM_SETUP
    """Setup commands over SSH."""
    ray_start: Delay = _RAY_START


WARM_POD = NodeStart(
    request=Delay(median_s=1.0),
    provision=Delay.between(0.5, 2),
    image_pull=Delay.between(0.5, 2),
    ray_install=NOTHING,
)
"""A pod on a machine that is there and has the image.

The operator sees the new number of replicas at once and makes the pod (KubeRay requeues after 2 s).
"""
COLD_CPU_POD = NodeStart(
    request=Delay(median_s=1.0),
    provision=Delay.between(60, 180),
    image_pull=Delay.between(20, 60),
    ray_install=NOTHING,
)
"""A pod whose machine must be added first (60-180 s), with an image of 1-2 GB. Assumed."""
COLD_GPU_POD = NodeStart(
    request=Delay(median_s=1.0),
    provision=Delay.between(60, 180),
    image_pull=Delay.between(120, 360),
    ray_install=NOTHING,
)
"""The same with a GPU image: pulled in 2-6 minutes. Assumed."""

PHASES = tuple(f.name for f in fields(NodeStart))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stockout:
    """A time in which the cloud has no machine of a type."""

    node_type: str
    from_s: float = 0.0
    until_s: float = math.inf

    def holds(self, node_type: str, now_ns: int) -> bool:
        """Whether it holds now."""
        within = self.from_s * NS_PER_S <= now_ns < self.until_s * NS_PER_S
        return within and node_type == self.node_type


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpec:
    """Where machines come from."""

    starts: Mapping[str, NodeStart] = field(default_factory=dict)
    """By type; a VM's delays for types left out."""
    pods: bool = False
    """A machine out of stock is waited for (a pod is pending), not refused."""
    stockouts: tuple[Stockout, ...] = ()
    spares: Mapping[str, int] = field(default_factory=dict)
    """Machines by type beyond its most, for those that replace others not yet known to be dead."""


EVERYWHERE = CloudSpec()
"""VMs, always to be had."""


@dataclass(slots=True, kw_only=True)
class Launch:
    """One machine on its way; when each phase began, for the report."""

    number: int
    node_type: str
    began_ns: int
    node_id: NodeID = -1
    phases_ns: dict[str, int] = field(default_factory=dict)
    """How long each phase took that is over."""
    up_ns: int = -1
    """When its raylet started; -1: never, so far."""


class Cloud:
    """Machines of all types.

    Parameters
    ----------
    sim
        The run; delays come from its streams ``cloud/<phase>``.
    off
        Machines that can be had, and their types; taken in this order.
    types
        Of every machine.
    spec
        Delays, and what is out of stock when.
    start, stop
        What brings a node's raylet up, and ends all of the node.
    """

    def __init__(
        self,
        sim: Simulation,
        off: Mapping[NodeID, str],
        types: Sequence[str],
        spec: CloudSpec,
        *,
        start: Callable[[NodeID], object],
        stop: Callable[[NodeID], object],
    ) -> None:
        self._sim = sim
        self.off = dict(off)
        self._type_of = types
        self.spec = spec
        self._start, self._stop = start, stop
        self.launches: list[Launch] = []
        """Every request so far."""
        self._on_the_way: dict[NodeID, tuple[Launch, Handle | None]] = {}
        """With the end of its phase; None: it waits for ever."""

    def launch(self, node_type: str, then: Callable[[NodeID | None], object]) -> None:
        """``NodeProvider.launch``."""
        launch = Launch(
            number=len(self.launches) + 1, node_type=node_type, began_ns=self._sim.now_ns
        )
        self.launches.append(launch)
        delay_ns = self._draw(launch, "request")
        self._sim.call_later(delay_ns, self._requested, (launch, then))

    def terminate(self, node_id: NodeID) -> None:
        """``NodeProvider.terminate``."""
        coming = self._on_the_way.pop(node_id, None)
        if coming is not None and coming[1] is not None:
            self._sim.cancel(coming[1])
        self._stop(node_id)
        self.gone(node_id)

    def gone(self, node_id: NodeID) -> None:
        """A machine has been lost or given back: another can be had in its place."""
        self.off[node_id] = self._type_of[node_id]

    def machines(self) -> Mapping[NodeID, str]:
        """``NodeProvider.machines``."""
        return {n: t for n, t in enumerate(self._type_of) if n not in self.off}

    def runs(self, node_id: NodeID) -> bool:
        """``NodeProvider.runs``."""
        coming = self._on_the_way.get(node_id)
        return coming is None or "image_pull" in coming[0].phases_ns

    def _draw(self, launch: Launch, phase: str) -> int:
        delay: Delay = getattr(self.spec.starts.get(launch.node_type, NodeStart()), phase)
        drawn = self._sim.rng(f"cloud/{phase}").standard_normal()
        launch.phases_ns[phase] = to_ns(delay.median_s * math.exp(delay.sigma * drawn))
        return launch.phases_ns[phase]

    def _requested(self, asked: tuple[Launch, Callable[[NodeID | None], object]]) -> None:
        launch, then = asked
        free = next((n for n, t in self.off.items() if t == launch.node_type), None)
        if free is None or (not self.spec.pods and self._wait_s(launch.node_type)):
            then(None)
            return
        del self.off[free]
        launch.node_id = free
        then(free)
        self._next(launch, "provision")

    def _wait_s(self, node_type: str) -> float:
        """How long until the cloud has a machine of a type."""
        now_ns = self._sim.now_ns
        out_s = (s.until_s for s in self.spec.stockouts if s.holds(node_type, now_ns))
        return max(0.0, max(out_s, default=0.0) - now_ns / NS_PER_S)

    def _next(self, launch: Launch, phase: str) -> None:
        """Begin a phase."""
        wait_s = self._wait_s(launch.node_type) if phase == "provision" else 0.0
        handle = None
        if math.isfinite(wait_s):
            delay_ns = to_ns(wait_s) + self._draw(launch, phase)
            launch.phases_ns[phase] = delay_ns
            handle = self._sim.call_later(delay_ns, self._over, (launch, phase))
        self._on_the_way[launch.node_id] = launch, handle

    def _over(self, ended: tuple[Launch, str]) -> None:
        launch, phase = ended
        following = PHASES[PHASES.index(phase) + 1 :]
        if following:
            self._next(launch, following[0])
            return
        del self._on_the_way[launch.node_id]
        launch.up_ns = self._sim.now_ns
        self._start(launch.node_id)
