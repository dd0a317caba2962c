"""Process groups on the machine: who forms a communicator, where they sit, what a call costs.

Ranks fill the GPU nodes in order, as launchers place them. A folded simulation runs one rank of
each class of symmetric ranks; its calls then load the links for all sibling groups at once, because
those run the same call at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter

import numpy as np

from raysim.errors import ScenarioError
from raysim.hardware.link_numbers import Integers, Places, Ways
from raysim.hardware.maxmin import Loads
from raysim.hardware.node_links import Link
from raysim.hardware.topology import Member, Topology
from raysim.perf.collectives import CollectiveCost, GroupShape, collective
from raysim.perf.contention import held_share
from raysim.training.program import Call, Kind, Op
from raysim.training.settings.parallel import Coordinate, Mesh

_ACROSS_STAGES = {"pp", "mp", "tied", "copies"}
"""Groups that do not stand in each stage as in the first."""
_rate_and_latency = attrgetter("bytes_per_s", "latency_s")


@dataclass(frozen=True)
class Traffic:
    """One call as the network sees it."""

    cost: CollectiveCost
    made: Callable[[], Ways]

    @cached_property
    def ways(self) -> Ways:
        """Bytes on each link per byte of the call's size: thousands of links, so when asked for."""
        return self.made()


class Communicators:
    """Groups, placement and costs of a job on a cluster.

    Parameters
    ----------
    mesh
        The job's parallel mesh.
    topology
        Of the cluster the job runs on.
    folded
        Whether one rank stands for all data-parallel replicas and tensor-parallel peers.
    tied_stages
        Ranks of a pipeline that share a tied weight.

    Raises
    ------
    ScenarioError
        The job needs more GPUs than the cluster has.
    """

    def __init__(
        self, mesh: Mesh, topology: Topology, *, folded: bool, tied_stages: Sequence[int] = ()
    ) -> None:
        self.mesh = mesh
        self.topology = topology
        self.folded = folded
        self.tied_stages = tuple(tied_stages)
        nodes = topology.cluster.gpu_nodes
        self.placement: tuple[Member, ...] = tuple(
            (n, i) for n, node in enumerate(nodes) for i in range(node.gpu_count)
        )
        if mesh.world > len(self.placement):
            raise ScenarioError(
                f"the job needs {mesh.world} GPUs (pp {mesh.pp} x dp {mesh.dp}"
                f"{f' x cp {mesh.cp}' if mesh.cp > 1 else ''} x tp {mesh.tp}); "
                f"the cluster has {len(self.placement)}"
            )
        self._places: Places = np.array(self.placement)
        self._ranks: dict[tuple[str, int], list[Integers]] = {}
        self._stage_size = mesh.world // mesh.pp
        """Ranks of a stage: the pipeline is the mesh's outermost axis."""
        self._groups = {
            "dp": mesh.dp_group, "tp": mesh.tp_group, "pp": mesh.pp_group, "cp": mesh.cp_group,
            "ep": mesh.ep_group, "edp": mesh.expert_dp_group, "mp": mesh.model_group,
        }  # fmt: skip
        self._members: dict[tuple[str, int], tuple[int, ...]] = {}
        self._participants: dict[tuple[str, int], int] = {}
        self._shapes: dict[tuple[object, ...], GroupShape] = {}
        self._shapes_of: dict[bytes, GroupShape] = {}
        self._shape_of: dict[tuple[str, int], GroupShape] = {}
        self._traffic: dict[tuple[object, ...], Traffic] = {}
        self._collective_ways: dict[tuple[object, ...], Ways] = {}
        self._sends: dict[tuple[int, int], tuple[list[tuple[int, int]], Ways]] = {}
        self._told_apart: dict[tuple[Ways, ...], dict[Ways, Loads]] = {}

    @cached_property
    def ranks_per_node(self) -> int:
        """Ranks of this job on its fullest node."""
        return max(Counter(n for n, _ in self.placement[: self.mesh.world]).values())

    @cached_property
    def copy_bytes_per_s(self) -> float:
        """Host to GPU while every rank of a node copies: GPUs may share a PCIe uplink."""
        loads: dict[Link, float] = {}
        first = self.placement[0][0]
        here = [m for m in self.placement[: self.mesh.world] if m[0] == first]
        for member in here:
            for link in self.topology.path(("host", first), ("gpu", *member)):
                loads[link] = loads.get(link, 0.0) + 1.0
        return min(link.bytes_per_s / load for link, load in loads.items())

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """Global ranks of the communicator ``group`` that ``rank`` belongs to."""
        key = (group, rank)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._build(group, self.mesh.coordinate(rank))
        return found

    def _build(self, group: str, at: Coordinate) -> tuple[int, ...]:
        mesh = self.mesh
        if group == "copies":
            other = replace(at, pp=mesh.pp - 1 - at.pp)
            return tuple(sorted((*mesh.dp_group(at), *mesh.dp_group(other))))
        if group.startswith("dp_"):
            return _part(mesh.dp_group(at), at.dp, group)
        if group.startswith("tp_"):
            return _part(mesh.tp_group(at), at.tp, group)
        if group == "tied":
            line = mesh.pp_group(at)
            return tuple(line[stage] for stage in self.tied_stages)
        assert group in self._groups, f"no communicator named {group!r}"
        return self._groups[group](at)

    @cached_property
    def _simulated(self) -> frozenset[int]:
        return frozenset(self.representatives())

    def representatives(self) -> tuple[int, ...]:
        """Ranks to simulate: one per pipeline stage when folded, else all."""
        if not self.folded:
            return tuple(range(self.mesh.world))
        return tuple(self.mesh.rank(Coordinate(pp=p, dp=0, tp=0)) for p in range(self.mesh.pp))

    def participants(self, group: str, rank: int) -> int:
        """How many simulated ranks a call over this communicator waits for."""
        key = (group, rank)
        count = self._participants.get(key)
        if count is None:
            count = sum(r in self._simulated for r in self.members(group, rank))
            self._participants[key] = count
        return count

    def _siblings(self, group: str, rank: int) -> list[tuple[int, ...]]:
        """Groups that make the same call at the same time; just this one when not folded."""
        if not self.folded:
            return [self.members(group, rank)]
        first = rank - rank % self._stage_size
        groups, seen = [], set[int]()
        for other in range(first, first + self._stage_size):
            if other not in seen:
                members = self._build(group, self.mesh.coordinate(other))
                seen.update(members)
                groups.append(members)
        return groups

    def _sibling_places(self, group: str, rank: int) -> list[Places]:
        """Where the ranks of those groups sit, groups of one size together."""
        stage = 0 if not self.folded or group in _ACROSS_STAGES else rank // self._stage_size
        rank -= stage * self._stage_size
        by_size = self._ranks.get((group, rank))
        if by_size is None:
            groups: dict[int, list[tuple[int, ...]]] = {}
            for members in self._siblings(group, rank):
                groups.setdefault(len(members), []).append(members)
            by_size = self._ranks[group, rank] = [np.array(some) for some in groups.values()]
        return [self._places[ranks + stage * self._stage_size] for ranks in by_size]

    def traffic(self, call: Call, rank: int) -> Traffic:
        """Cost and link loads of a collective issued by ``rank``."""
        members = self.members(call.group, rank)
        key = (call.op, call.size_bytes, members)
        known = self._traffic.get(key)
        if known is None:
            known = self._traffic[key] = self._collective(call, rank, members)
        return known

    def sm_s(self, call: Call, rank: int) -> float:
        """Seconds of all SMs that NCCL's blocks of a collective amount to."""
        key = (call.group, rank)
        shape = self._shape_of.get(key)
        if shape is None:
            shape = self._shape_of[key] = self.shape(self.members(call.group, rank))
        cost = collective(call.op, call.size_bytes, shape)
        return cost.seconds * held_share(shape, cost.algorithm)

    def _collective(self, call: Call, rank: int, members: tuple[int, ...]) -> Traffic:
        cost = collective(call.op, call.size_bytes, self.shape(members))
        size = max(call.size_bytes, 1)
        intra, inter = cost.intra_bytes_per_rank / size, cost.inter_bytes_per_node / size
        return Traffic(cost, partial(self._ways, call.group, rank, members, intra, inter))

    def _ways(
        self, group: str, rank: int, members: tuple[int, ...], intra: float, inter: float
    ) -> Ways:
        """Bytes on links per byte; one object for calls that differ in size only."""
        key = (group, members, intra, inter)
        known = self._collective_ways.get(key)
        if known is None:
            places = self._sibling_places(group, rank)
            known = self._collective_ways[key] = self.topology.numbers.ways(places, intra, inter)
        return known

    def loads(self, every: Iterable[Traffic]) -> dict[Ways, Loads]:
        """What each of these puts on a network that carries no others: ``told_apart``."""
        ways = tuple(dict.fromkeys(traffic.ways for traffic in every))
        known = self._told_apart.get(ways)
        if known is None:
            loads = self.topology.numbers.told_apart(ways)
            known = self._told_apart[ways] = dict(zip(ways, loads, strict=True))
        return known

    def traffic_of(self, op: Op, rank: int) -> Traffic:
        """What a collective, send or receive of ``rank`` puts on the network."""
        assert op.call is not None, f"{op!r} communicates without a call"
        if op.kind == Kind.COLLECTIVE:
            return self.traffic(op.call, rank)
        src, dst = rank, op.call.peer
        if op.kind == Kind.RECV:
            src, dst = dst, src
        return self.point_to_point(src, dst, op.call.size_bytes)

    def point_to_point(self, src: int, dst: int, size_bytes: int) -> Traffic:
        """Cost and link loads of a send; folded, of the same send in every replica.

        When replicas differ in where their stages sit, the slowest one counts.
        """
        key = ("send", src, dst, size_bytes)
        known = self._traffic.get(key)
        if known is None:
            known = self._traffic[key] = self._send(src, dst, size_bytes)
        return known

    def _send(self, src: int, dst: int, size_bytes: int) -> Traffic:
        known = self._sends.get((src, dst))
        if known is None:
            known = self._sends[src, dst] = self._routes(src, dst)
        alike, ways = known
        costs = [collective("send_recv", size_bytes, self.shape(pair)) for pair in alike]
        return Traffic(max(costs, key=lambda c: c.seconds), lambda: ways)

    def _routes(self, src: int, dst: int) -> tuple[list[tuple[int, int]], Ways]:
        """Of sends that cost the same the first pair, and what all put on the links together."""
        pairs = np.array([[src, dst]])
        if self.folded:
            size = self._stage_size
            pairs = np.array([[src - src % size, dst - dst % size]]) + np.arange(size)[:, None]
        places = self._places[pairs]
        alike: dict[object, tuple[int, int]] = {}
        last: dict[object, int] = {}
        for same in self.topology.numbers.alike(places).values():
            first, second = pairs[same[0]].tolist()
            here, there = self.placement[first], self.placement[second]
            path = self.topology.path(("gpu", *here), ("gpu", *there))
            way = self._kind(here), self._kind(there), tuple(map(_rate_and_latency, path))
            alike.setdefault(way, (first, second))
            last[way] = max(last.get(way, 0), same[-1])
        found = sorted(alike, key=lambda way: -last[way])
        return [alike[way] for way in found], self.topology.numbers.routes(places)

    def _kind(self, at: Member) -> tuple[str, int]:
        """What an end of a send has to do with its cost: its node, and how many NICs are near."""
        return self.topology.specs[at[0]].name, len(self.topology.nics_of_gpu(*at))

    def shape(self, members: Sequence[int]) -> GroupShape:
        """Shape of a communicator; equal shapes are one object, so that costs are cached."""
        (sits,) = self.topology.numbers.alike(self._places[None, list(members)])
        known = self._shapes_of.get(sits)
        if known is None:
            known = self._shapes_of[sits] = self._shape([self.placement[r] for r in members])
        return known

    def _shape(self, places: Sequence[Member]) -> GroupShape:
        spread = self.topology.spread(places)
        key = spread, tuple(dict.fromkeys(self.topology.specs[n].name for n, _ in places))
        known = self._shapes.get(key)
        if known is None:
            node = self.topology.specs[places[0][0]]
            known = self._shapes[key] = GroupShape.on(node, **spread._asdict())
        return known


def _kind_and_size(group: str) -> tuple[str, int]:
    """``dp_shard:8``: data-parallel ranks eight by eight; ``dp_replicate:8``: every eighth.

    ``tp_shard:2`` and ``tp_replicate:2`` likewise: dimensions of a mesh that share one model.
    """
    kind, _, size = group.partition(":")
    assert kind[2:] in {"_shard", "_replicate"}, f"no communicator named {group!r}"
    return kind, int(size)


def _across(ranks: tuple[int, ...], at: int, group: str) -> tuple[int, ...]:
    """``dp_across:16:8``: of sixteen ranks in a row, every eighth (MiCS's gather over nodes)."""
    size, local = map(int, group.split(":")[1:])
    start = at - at % size
    return ranks[start + at % local : start + size : local]


def _part(ranks: tuple[int, ...], at: int, group: str) -> tuple[int, ...]:
    """Those of ``ranks`` along an axis that the one at place ``at`` shares or repeats with."""
    if group.startswith("dp_across:"):
        return _across(ranks, at, group)
    kind, size = _kind_and_size(group)
    if kind.endswith("_shard"):
        start = at - at % size
        return ranks[start : start + size]
    return ranks[at % size :: size]
