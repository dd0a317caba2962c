"""The network: how full each port was over time, and who sent how much to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raysim.hardware.port_history import PortUse
from raysim.raycore.ids import NodeID
from raysim.raystate.names import node_name
from raysim.units import format_bytes, format_bytes_per_s

BINS = 200
MOST_ROWS = 64
"""Of the heat map, the busiest ports."""
MOST_NODES = 32
"""Of the matrix."""
LEVELS = "0123456789abcdefghijk"
"""Twentieths of what a port can carry; the script reads them one by one."""


class HeatRow(NamedTuple):
    """One port, one way."""

    name: str
    levels: str
    said: str
    carried_bytes: float
    mean_frac: float
    most_frac: float
    rate: str
    """What it can carry."""


class Heat(NamedTuple):
    """The busiest ports."""

    rows: list[HeatRow]
    ports: int
    bins: int
    label: str


class Matrix(NamedTuple):
    """Bytes between nodes; an empty cell is nothing."""

    nodes: list[str]
    cells: list[tuple[str, list[tuple[str, float]]]]
    """(From, (bytes as text, share of the largest) of each node)."""
    left_out: int


def heat(ports: Sequence[PortUse], end_ns: int) -> Heat | None:
    """Shares of capacity in each part of the run."""
    rows = []
    for use in ports:
        carried = sum(use.carried_bytes)
        if not carried:
            continue
        shares = _shares(use, end_ns)
        most = max(shares)
        mean = carried / (use.bytes_per_s * end_ns / 1e9) if end_ns else 0.0
        name = f"{use.node} {use.port.replace('-', ' ')} {use.way}"
        said = f"{format_bytes(carried)}, {mean:.1%} of {format_bytes_per_s(use.bytes_per_s)}"
        rows.append(
            HeatRow(name, "".join(_level(s) for s in shares), said, carried, mean, most,
                    format_bytes_per_s(use.bytes_per_s))
        )  # fmt: skip
    if not rows:
        return None
    busiest = sorted(rows, key=lambda r: -r.carried_bytes)[:MOST_ROWS]
    shown = sorted(busiest, key=_in_order)
    top = busiest[0]
    label = f"{len(rows)} ports carried anything; the busiest is {top.name}: {top.said}"
    return Heat(shown, len(rows), BINS, label)


def _shares(use: PortUse, end_ns: int) -> list[float]:
    """The recorder's bins brought to those of the picture."""
    from raysim.kernel.sampler import spread

    bins = [0.0] * BINS
    width = end_ns / BINS
    for i, carried in enumerate(use.carried_bytes):
        if carried:
            until = min((i + 1) * use.bin_ns, end_ns)
            spread(bins, carried, min(i * use.bin_ns, until - 1), until, width)
    could = use.bytes_per_s * width / 1e9
    return [min(1.0, b / could) if could else 0.0 for b in bins]


def _level(share: float) -> str:
    """Rounded up, so that a port that carried anything shows."""
    return LEVELS[min(len(LEVELS) - 1, -int(-share * (len(LEVELS) - 1) // 1))]


def _in_order(row: HeatRow) -> tuple[int, str]:
    number = row.name.removeprefix("node-").split(" ")[0]
    return (int(number) if number.isdigit() else -1, row.name)


def matrix(transfers: Mapping[tuple[NodeID, NodeID], Sequence[float]]) -> Matrix | None:
    """Objects' bytes from node to node; from ``disk``: copies whose source had gone."""
    moved = {pair: size for pair, (_, size) in transfers.items() if size}
    if not moved:
        return None
    of_node: dict[NodeID, float] = defaultdict(float)
    for (a, b), size in moved.items():
        of_node[a] += size
        of_node[b] += size
    ranked = sorted(of_node, key=lambda i: (-of_node[i], i))
    nodes = sorted(ranked[:MOST_NODES])
    most = max(moved.values())
    cells: list[tuple[str, list[tuple[str, float]]]] = []
    for a in nodes:
        row: list[Any] = [moved.get((a, b), 0.0) for b in nodes]
        cells.append((_name(a), [(format_bytes(v) if v else "", v / most) for v in row]))
    return Matrix([_name(i) for i in nodes], cells, len(ranked) - len(nodes))


def _name(node_id: NodeID) -> str:
    return node_name(node_id) if node_id >= 0 else "disk"
