"""What the main process of a script does to make a batch: numbers drawn, samples collated, copies.

``host_data.csv``: wall time with the threads that torch takes by itself. ``values`` are those of
the batch, or of one tensor; ``samples`` how many pieces it is made of. ``loader`` is a whole batch
of a ``DataLoader`` without workers: each sample is indexed, then all are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from raysim.measure.session import Point, Session, repeat, stopwatch

TABLE = "host_data"
COLUMNS = ("threads", "what", "samples", "values")
VALUES = (1_000, 100_000, 10_000_000)
DRAWN = (
    "randn",
    "rand",
    "randint",
    "normal_double",
    "to_long",
    "to_half",
    "clone",
    "add",
    "div_u8",
)
COLLATED = ((32, 3), (32, 150_528), (128, 12_288), (1024, 30), (4096, 30))
"""Samples of a batch, values of each."""


def measure(session: Session) -> None:
    """Fill ``host_data.csv``."""
    import torch

    with session.table(TABLE, COLUMNS) as table:
        session.run(table, points(torch.get_num_threads(), quick=session.quick))


def points(threads: int, *, quick: bool) -> Iterator[Point]:
    """Whole tensors by size, then batches by their samples."""
    for what, values in product(DRAWN, VALUES[:1] if quick else VALUES):
        yield _point(threads, what, 1, values, _whole(what, values))
    for what, (samples, each) in product(
        ("stack", "index", "loader", "channels_last"), COLLATED[:1] if quick else COLLATED
    ):
        yield _point(threads, what, samples, samples * each, _batch(what, samples, each))


def _point(
    threads: int, what: str, samples: int, values: int, made: Callable[[], Callable[[], object]]
) -> Point:
    parameters = {"threads": threads, "what": what, "samples": samples, "values": values}
    return Point(
        parameters=parameters, measure=lambda allowed_s: repeat(stopwatch(made()), allowed_s)
    )


def _whole(what: str, values: int) -> Callable[[], Callable[[], object]]:
    import torch

    def made() -> Callable[[], object]:
        x, n = torch.rand(values), torch.zeros(values, dtype=torch.uint8)
        work: dict[str, Callable[[], object]] = {
            "randn": partial(torch.randn, values),
            "rand": partial(torch.rand, values),
            "randint": lambda: torch.randint(0, 32_000, (values,)),
            "normal_double": lambda: torch.randn(values, dtype=torch.float64),
            "to_long": lambda: x.to(torch.long), "to_half": lambda: x.to(torch.float16),
            "clone": x.clone, "add": lambda: x + 1.0, "div_u8": lambda: n.float() / 255,
        }  # fmt: skip
        return work[what]

    return made


def _batch(what: str, samples: int, each: int) -> Callable[[], Callable[[], object]]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def made() -> Callable[[], object]:
        rows = torch.rand(samples, each)
        pieces = list(rows)
        data = TensorDataset(rows)
        image = rows.view(samples, 3, -1, 1)
        work: dict[str, Callable[[], object]] = {
            "stack": lambda: torch.stack(pieces),
            "index": lambda: [data[i] for i in range(samples)],
            "loader": lambda: next(iter(DataLoader(data, batch_size=samples))),
            "channels_last": lambda: image.clone(memory_format=torch.channels_last),
        }
        return work[what]

    return made
