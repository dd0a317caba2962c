"""How far a prediction of a training job may be off: intervals from past errors on jobs like it.

``tables/training_intervals.csv`` holds, per kind of job, where measured over predicted lies for
nine of ten rows of a family not among those compared, from rows that no constant was fitted on;
``tables/training_ranges.csv`` holds what those rows cover, ``tables/training_points.csv`` the rows.
All are written by ``raysim validate --intervals`` (``raysim.validate.intervals``).

An interval covers nine of ten rows of a cluster and program *like those of its kind*. It knows
nothing of a job unlike all of them, which ``standing`` therefore says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from raysim.perf import tables

Quantity = Literal["time", "memory"]
Bound = Literal["kernels", "host", "network"]
Standing = Literal["interpolated", "extrapolated", "guessed"]

SHARE = 0.2
"""A job waits for host or network when it spends more than this share of its step so."""
COVERS = 0.9
"""Share of rows that an interval is made to hold."""
ANY = "any"
INTERVALS, RANGES, POINTS = "training_intervals", "training_ranges", "training_points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What decides which past errors a prediction is held against."""

    gpu: str
    architecture: str
    tables: Literal["measured", "borrowed", "cpu"]
    """Whether this GPU's kernels were measured, or it borrows another's curves."""
    engine: str
    """``ddp``, ``zero-0`` to ``zero-3``, with ``-offload`` where states are in host memory."""
    nodes: int
    gpus: int
    network: str
    """Kind of the NICs between its nodes; ``none`` on one node."""
    bound: Bound
    parameters: float
    seq_len: int

    def kinds(self, quantity: Quantity) -> Iterator[tuple[str, ...]]:
        """Keys of the interval table that fit, the most specific first."""
        if self.tables == "cpu":  # like no GPU
            return
        nodes = "one" if self.nodes == 1 else "many"
        # Peaks do not depend on what the step waits for.
        full = (self.tables, nodes) if quantity == "memory" else (self.tables, nodes, self.bound)
        for known in range(len(full), -1, -1):
            yield (quantity, *full[:known], *[ANY] * (3 - known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What nine of ten predictions of a kind are off by, on a cluster that nobody measured."""

    kind: tuple[str, ...]
    rows: int
    families: int
    low: float
    """Measured over predicted: its 5th percentile over families; ``high`` the 95th."""
    high: float

    def around(self, predicted: float) -> tuple[float, float]:
        """Where nine of ten measured values would lie."""
        return predicted * self.low, predicted * self.high

    @property
    def said(self) -> str:
        """The kind in words."""
        _, basis, nodes, bound = self.kind
        parts = {
            "measured": "GPUs with measured kernels", "borrowed": "GPUs with borrowed kernels",
            ANY: "all GPUs",
        }[basis], {"one": "one node", "many": "many nodes", ANY: ""}[nodes]  # fmt: skip
        last = "" if bound == ANY else f"bound by {bound}"
        return ", ".join(p for p in (*parts, last) if p)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What the rows of one GPU cover."""

    gpu: str
    rows: int
    most_gpus: int
    parameters: tuple[float, float]
    seq_len: tuple[int, int]
    engines: tuple[str, ...]
    networks: tuple[str, ...]


def interval(features: Features, quantity: Quantity) -> Interval | None:
    """Of the most specific kind that has rows enough; None where no kind has."""
    return pick(features, quantity, _intervals())


def pick(
    features: Features, quantity: Quantity, known: dict[tuple[str, ...], Interval]
) -> Interval | None:
    """``interval`` from a table of one's own."""
    fitting = (known[kind] for kind in features.kinds(quantity) if kind in known)
    return next(fitting, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Whether past errors speak of a job at all, and why not."""

    standing: Standing
    reasons: tuple[str, ...] = ()


def standing(features: Features) -> Stand:
    """Within what was measured, beyond it, or a GPU of which no run was measured."""
    return stand(features, _ranges())


def stand(features: Features, ranges: Sequence[Range]) -> Stand:
    """``standing`` against ranges of one's own."""
    own = next((r for r in ranges if r.gpu == features.gpu), None)
    if own is None:
        return Stand(standing="guessed", reasons=(f"no run on {features.gpu} was measured",))
    beyond = []
    if features.gpus > own.most_gpus:
        beyond.append(f"{features.gpus:,} GPUs, measured up to {own.most_gpus:,}")
    low, high = own.parameters
    if not low <= features.parameters <= high:
        beyond.append(
            f"{features.parameters / 1e9:.2g} B parameters, measured {low / 1e9:.2g} to "
            f"{high / 1e9:.2g} B"
        )
    short, long = own.seq_len
    if not short <= features.seq_len <= long:
        beyond.append(f"sequences of {features.seq_len:,}, measured {short:,} to {long:,}")
    if features.engine not in own.engines:
        beyond.append(f"no run with {features.engine} was measured on this GPU")
    if features.network not in (*own.networks, "none"):
        beyond.append(f"no run over {features.network} was measured on this GPU")
    return Stand(standing="extrapolated" if beyond else "interpolated", reasons=tuple(beyond))


@cache
def _intervals() -> dict[tuple[str, ...], Interval]:
    found: dict[tuple[str, ...], Interval] = {}
    for quantity in tables.systems(INTERVALS):
        for row in tables.rows(INTERVALS, quantity):
            kind = (quantity, row["tables"], row["nodes"], row["bound"])
            found[kind] = Interval(
                kind=kind, rows=int(row["rows"]), families=int(row["families"]),
                low=float(row["low"]), high=float(row["high"]),
            )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured run beside its prediction."""

    family: str
    name: str
    gpu: str
    gpus: int
    predicted: float
    """MFU of a time or rate; bytes of a peak. ``measured`` likewise."""
    measured: float


def compared(kind: Sequence[str]) -> list[Compared]:
    """The runs that the interval of a kind is made of."""
    return [
        Compared(
            family=row["family"], name=row["name"], gpu=row["gpu"], gpus=int(row["gpus"]),
            predicted=float(row["predicted"]), measured=float(row["measured"]),
        )
        for row in tables.rows(POINTS, kind[0])
        if _is_of(row, kind)
    ]  # fmt: skip


def _is_of(row: Mapping[str, str], kind: Sequence[str]) -> bool:
    """Whether a row's job is of a kind; what CPU ranks did is of none."""
    known = zip(("tables", "nodes", "bound"), kind[1:], strict=True)
    return row["tables"] != "cpu" and all(wanted in (ANY, row[name]) for name, wanted in known)


@cache
def _ranges() -> tuple[Range, ...]:
    found = []
    for gpu in tables.systems(RANGES):
        (row,) = tables.rows(RANGES, gpu)
        found.append(
            Range(
                gpu=gpu, rows=int(row["rows"]), most_gpus=int(row["most_gpus"]),
                parameters=(float(row["least_parameters"]), float(row["most_parameters"])),
                seq_len=(int(row["least_seq_len"]), int(row["most_seq_len"])),
                engines=tuple(row["engines"].split(" ")),
                networks=tuple(row["networks"].split(" ")),
            )
        )  # fmt: skip
    return tuple(found)
