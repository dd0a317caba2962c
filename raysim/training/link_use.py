"""What the links of the simulated ranks carried in the last step, over time.

Of a rank, both ways of its NVLink and PCIe ports, its NICs and their leaf switches. The others
carry the same by symmetry. Copies between host and GPU are spans of the copy streams; their bytes
are not among those of a link.

Simplification: a call's bytes are spread evenly over its time, so that where two share a link their
sum may be a little above what it carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from raysim.hardware.link_numbers import Ways
from raysim.hardware.node_links import Link
from raysim.training.program import Kind
from raysim.training.tower import StepOutcome

MOST_RANKS = 32
"""Simulated ranks of which every link is told; of more, only the way out."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one link carried in the last simulated step."""

    link: Link
    node: str
    step_ns: int
    """Duration of the step."""
    rates: list[tuple[int, int]]
    """Moment in ns, and bytes per second from then on."""

    @property
    def carried_bytes(self) -> float:
        """The area under the rate."""
        return sum(rate * (b - a) for (a, rate), (b, _) in pairwise(self.rates)) / 1e9

    @property
    def mean_frac(self) -> float:
        """Of what the link could have carried in the step."""
        return self.carried_bytes * 1e9 / self.step_ns / self.link.bytes_per_s

    @property
    def peak_frac(self) -> float:
        """The highest rate over the link's own."""
        return max(rate for _, rate in self.rates) / self.link.bytes_per_s


def link_use(outcome: StepOutcome) -> list[LinkUse]:
    """Links of the simulated ranks that carried something in the last step.

    A meeting of ranks counts once, with all it puts on a link; where ranks are folded, that of
    their likes is in it, so a link carries what it would if every rank were simulated.
    """
    step = len(outcome.step_ns) - 1
    nodes = _own_links(outcome)
    changes: dict[Link, list[tuple[int, int]]] = {link: [] for link in nodes}
    numbers = outcome.comms.topology.numbers
    known: dict[Ways, list[tuple[Link, float]]] = {}
    for ways, size_bytes, begin, end in _meetings(outcome, step):
        own = known.get(ways)
        if own is None:
            own = known[ways] = numbers.bytes_on(ways, nodes)
        for link, on_link_bytes in own:
            rate = round(on_link_bytes * 1e9 * size_bytes / (end - begin))
            changes[link] += ((begin, rate), (end, -rate))
    windows = [line.step_window(step) for line in outcome.timelines]
    step_ns = max(w[1] for w in windows) - min(w[0] for w in windows)
    rates = {link: _running(changes[link]) for link in nodes}
    return [LinkUse(link, f"node-{nodes[link]}", step_ns, of) for link, of in rates.items() if of]


def _running(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rates from their changes; moments at which nothing changes in the end are left out."""
    rates: list[tuple[int, int]] = []
    rate = 0
    for t_ns, change in sorted(changes):
        rate += change
        if rates and rates[-1][0] == t_ns:
            rates[-1] = (t_ns, rate)
        else:
            rates.append((t_ns, rate))
    before = (None, *(r for _, r in rates))
    return [(t, r) for (t, r), last in zip(rates, before, strict=False) if r != (last or 0)]


def _meetings(outcome: StepOutcome, step: int) -> Iterator[tuple[Ways, int, int, int]]:
    """Ways, bytes, begin and end of what was communicated, each meeting once."""
    seen = set[tuple[object, ...]]()
    for line in outcome.timelines:
        program, rank = line.program, line.program.rank
        for i in range(program.step_ends[step - 1] if step else 0, program.step_ends[step]):
            op, begin, end = program.ops[i], line.met_ns[i], line.end_ns[i]
            call = op.call
            if call is None or op.kind == Kind.RECV or end <= begin:
                continue
            ways = outcome.comms.traffic_of(op, rank).ways
            meeting = (ways, call.op, call.size_bytes, begin, end)
            if meeting not in seen:
                seen.add(meeting)
                yield ways, call.size_bytes, begin, end


def _own_links(outcome: StepOutcome) -> dict[Link, int]:
    """The simulated ranks' links, and the node of each."""
    comms, found = outcome.comms, dict[Link, int]()
    every = len(outcome.timelines) <= MOST_RANKS
    for line in outcome.timelines:
        node, local = comms.placement[line.program.rank]
        links = comms.topology.node(node)
        own = [_way_out(outcome, line.program.rank)]
        if every:
            for ports in (links.nvlink_out, links.nvlink_in, links.pcie_out, links.pcie_in):
                own += ports[local : local + 1]
            own += [link for pair, link in links.mesh.items() if local in pair]
            for nic in links.nics_of_gpu[local]:
                own += [links.nic_out[nic], links.nic_in[nic]]
                own += comms.topology.leaf_links(node, nic)
        for link in own:
            found.setdefault(link, node)
    return found


def _way_out(outcome: StepOutcome, rank: int) -> Link:
    """A rank's NIC where the job spans nodes, else its NVLink or PCIe port."""
    comms = outcome.comms
    node, local = comms.placement[rank]
    links = comms.topology.node(node)
    if comms.placement[comms.mesh.world - 1][0] != comms.placement[0][0]:
        return links.nic_out[links.nics_of_gpu[local][0]]
    return (links.nvlink_out or links.pcie_out)[local]
