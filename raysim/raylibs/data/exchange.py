"""All rows to all tasks: what maps of a shuffle have cut, and how its reduces fetch their parts.

Real counterpart: the map and reduce stages of ``_internal/planner/exchange`` and of
``operators/shuffle_operators``, between which every map holds one object for every reduce.

Here maps hold few objects, the slices, each with the parts of many reduces, and a reduce fetches
its part of them in bulk: over the network what other nodes hold, from disk what has been spilled.
By symmetry every node serves as much as it fetches, so the bytes come from one other node in turn,
and spilled bytes from the fetching node's own disks.

Not modelled: the slices' restored copies in the store, skewed partitions; what each of the M x R
parts costs its map and its reduce: 0.05 ms to cut, serialise and read one of 4 KB. The driver takes
every slice as it takes a block, where Ray's takes one object of metadata per task.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from raysim.hardware.topology import latency_s
from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import WAITS, Ask, Driver, Script
from raysim.raycore.tasks import Ref
from raysim.raylibs.data.blocks import Block, Made, Piece, evenly, locations, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.metrics import OpMetrics
from raysim.raylibs.data.operators import Links, Operator, TakesNothing
from raysim.raylibs.data.stages import ExchangeStage
from raysim.units import to_ns

LOOKS = 4
"""Times that a slice's places are looked up while its partitions are fetched."""


class Where(NamedTuple):
    """Places of a slice: nodes that hold some of it, the share on disk, objects nobody has."""

    nodes: tuple[NodeID, ...]
    spilled_frac: float
    lost: tuple[Ref, ...]


class Slice:
    """Objects with the parts of some partitions, one of every map; dropped with the last."""

    __slots__ = ("blocks", "left", "looked_at", "looks", "maps", "partitions")

    def __init__(self, blocks: list[Block], partitions: int) -> None:
        self.blocks = blocks
        self.maps = sum(b.split == 0 for b in blocks)
        self.partitions = self.left = partitions
        """Of it, and those that have not been reduced."""
        self.looks = 0
        self.looked_at = Where((), 0.0, ())

    def where(self, process: CoreProcess) -> Where:
        """As its owner knows, who is asked a few times for all partitions of a slice."""
        if self.looks % math.ceil(self.partitions / LOOKS) == 0:
            self.looked_at = self._look(process)
        self.looks += 1
        return self.looked_at

    def _look(self, process: CoreProcess) -> Where:
        nodes: dict[NodeID, None] = {}
        lost: list[Ref] = []
        spilled = whole = 0
        for block in self.blocks:
            assert block.ref is not None, "maps have made objects"
            found = locations(process, block)
            nodes.update(dict.fromkeys(found))
            whole += block.size_bytes
            if not found:
                lost.append(block.ref)
            elif process.is_spilled(block.ref):
                spilled += block.size_bytes
        return Where(tuple(sorted(nodes)), spilled / whole if whole else 0.0, tuple(lost))


class Part(NamedTuple):
    """What one reduce fetches."""

    slice: Slice
    size_bytes: float
    number: int
    pieces: tuple[Piece, ...]


class Exchange(TakesNothing):
    """Takes what maps have cut, and gives partitions to fetch: at the end, or round by round."""

    throttled = False

    def __init__(
        self, stage: ExchangeStage, name: str, inputs: list[Operator], context: DataContext,
        process: CoreProcess,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.name = name
        self.links = Links(inputs)
        self.context = context
        self.process = process
        self.metrics = OpMetrics(context)
        self.tasks: dict[int, Any] = {}
        self.materializes = True
        """Of rounds too: to Ray a shuffle is one operator, and no budget cuts into it."""
        self.open_maps = 0
        """Whose parts have not all been fetched."""
        self.parts: list[Part] = []
        """By number, as its blocks' ``start`` says."""
        self._held: list[Block] = []
        self._held_bytes = self._maps = 0

    def can_add_input(self) -> bool:
        """As ``Operator``."""
        return True

    def dispatch(self) -> Script:
        """As ``Operator``."""
        block = self.links.next_input()
        self._held.append(block)
        self._held_bytes += block.size_bytes
        self._maps += block.split == 0
        self.open_maps += block.split == 0
        if self.stage.round_maps and self._maps >= self.stage.round_maps:
            self._emit()
        yield from ()

    def all_inputs_done(self) -> Script:
        """As ``Operator``."""
        if self._held:
            self._emit()
        self.links.inputs_done = True
        yield from ()

    def _emit(self) -> None:
        """Partitions of what is held, slice by slice."""
        held, self._held = self._held, []
        self._held_bytes = self._maps = 0
        stage = self.stage
        groups: dict[int, list[Block]] = {}
        for block in held:
            groups.setdefault(block.split, []).append(block)
        counts = [made.rows for made in evenly(stage.partitions, 0, len(groups))]
        for (_, blocks), count in zip(sorted(groups.items()), counts, strict=False):
            parts = _contents(blocks) or evenly(*total(blocks), count)
            group = Slice([b._replace(pieces=()) for b in blocks], len(parts))
            for made in parts:
                number = len(self.parts)
                self.parts.append(Part(group, made.size_bytes, number, made.pieces))
                self.metrics.rows_out += made.rows
                self.metrics.bytes_out += made.size_bytes
                self.metrics.blocks_out += 1
                self.links.give(Block(made.rows, made.size_bytes, start=number))

    # for the tasks that fetch

    def lost(self, number: int) -> tuple[Ref, ...]:
        """Objects of a part that no node holds any more: given to the task, they are made again."""
        return self.parts[number].slice.where(self.process).lost

    def used(self, number: int) -> list[Ref]:
        """A part has been reduced; objects that nobody needs any more."""
        group = self.parts[number].slice
        group.left -= 1
        if group.left:
            return []
        self.open_maps -= group.maps
        blocks, group.blocks = group.blocks, []
        return [b.ref for b in blocks if b.ref is not None]

    def fetch(self, number: int) -> Ask:
        """Bring a part to the asking process's node."""

        def begin(d: Driver) -> Any:
            transfer = _Transfer(d, self.stage, self.parts[number])
            d.process.after(d.take_lead(), transfer.begin)
            return WAITS

        return Ask(begin)

    # what it is

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        return self.links.inputs_done or self.links.stopped

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        return len(self._held), self._held_bytes


def _contents(blocks: list[Block]) -> list[Made]:
    """Partitions of a slice whose contents count, with the pieces of all maps."""
    return [
        Made(sum(p.rows for p in pieces), sum(p.size_bytes for p in pieces), pieces)
        for pieces in zip(*(b.pieces for b in blocks), strict=True)
    ]


class _Transfer:
    """One part on its way to a node: network and disk side by side."""

    def __init__(self, driver: Driver, stage: ExchangeStage, part: Part) -> None:
        self._driver = driver
        self._local = stage.local
        self._part = part
        self._left = 1

    def begin(self, _: object) -> None:
        part = self._part
        env: Any = self._driver.process.env
        me = self._driver.process.me.node_id
        nodes, spilled_frac, _ = part.slice.looked_at
        others = [n for n in nodes if n != me]
        away = 0.0 if self._local else len(others) / max(len(nodes), 1)
        if others and away:
            peer = others[part.number % len(others)]
            path = env.topology.path(("host", peer), ("host", me))
            self._left += 1
            env.network.start(
                ((link, 1.0) for link in path), part.size_bytes * away,
                latency_ns=to_ns(latency_s(path)), then=self._arrived, failed=self._broken,
            )  # fmt: skip
        disks = env.spill_disks(me)
        if spilled_frac and disks:
            self._left += 1
            disk = disks[part.number % len(disks)]
            disk.read(part.size_bytes * spilled_frac, self._arrived, failed=self._broken)
        self._arrived(None)

    def _arrived(self, _: object) -> None:
        self._left -= 1
        if not self._left:
            self._driver.process.after(0, self._driver.slept)

    def _broken(self, _: object, _cause: object) -> None:
        """A peer or this node has died; if it is a peer, another has what is left."""
        self._arrived(None)
