"""What a task of ``read_parquet`` reads: row groups of one file or of several small ones.

Real counterpart: ``_internal/datasource_v2/common/online_bin_packer.py`` (``OnlineBinPacker``), by
whose defaults a bin is full at 128 MiB of uncompressed columns and 16 are open at once.

Not modelled: the actors that read footers, groups that a filter or a limit spares, projections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from raysim.rayapi.clock import import_unpatched

BIN_BYTES = 128 * 2**20
"""``RAY_DATA_PARQUET_BIN_PACKING_BYTES``."""
OPEN_BINS = 16
"""``RAY_DATA_PARQUET_BIN_PACKING_MAX_SHARED_OPEN_BINS``."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of a file, which one task reads."""

    file: int
    begin: int
    """The number of its first row in the file."""
    rows: int
    size_bytes: int
    """Of all its columns, uncompressed."""


@dataclass(slots=True)
class _Bin:
    groups: list[RowGroup] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, group: RowGroup) -> None:
        self.groups.append(group)
        self.size_bytes += group.size_bytes


def groups_of(number: int, file: Path) -> list[RowGroup]:
    """Of a file, as its footer has them."""
    footer = import_unpatched("pyarrow.parquet").read_metadata(file)
    found, begin = [], 0
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        size = sum(group.column(i).total_uncompressed_size for i in range(group.num_columns))
        found.append(RowGroup(number, begin, group.num_rows, size))
        begin += group.num_rows
    return found


def packed(
    groups: list[RowGroup], *, bin_bytes: int = BIN_BYTES, open_bins: int = OPEN_BINS
) -> list[list[RowGroup]]:
    """Row groups by read tasks, in the order in which those begin.

    A group goes into the first open bin that has room; where none has, into one of its own, for
    which the fullest is closed if too many are open. Files that have filled a bin go on in bins of
    their own. Within a bin, rows are in the order of its files.
    """
    closed: list[_Bin] = []
    shared: list[_Bin] = []
    own, own_file = _Bin(), -1
    seen: dict[int, int] = {}
    for group in groups:
        before = seen.get(group.file, 0)
        seen[group.file] = before + group.size_bytes
        if group.size_bytes > bin_bytes:
            closed.append(_Bin([group], group.size_bytes))
        elif before < bin_bytes:
            into = next((b for b in shared if b.size_bytes + group.size_bytes <= bin_bytes), None)
            if into is None:
                if len(shared) >= open_bins:
                    closed.append(max(shared, key=lambda b: b.size_bytes))
                    shared.remove(closed[-1])
                into = _Bin()
                shared.append(into)
            into.add(group)
            if into.size_bytes >= bin_bytes:
                shared.remove(into)
                closed.append(into)
        else:
            full = own.size_bytes + group.size_bytes > bin_bytes
            if own.groups and (own_file != group.file or full):
                closed.append(own)
                own = _Bin()
            own_file = group.file
            own.add(group)
            if own.size_bytes >= bin_bytes:
                closed.append(own)
                own = _Bin()
    made = [*closed, own, *shared]
    return [_by_files(b.groups) for b in made if b.groups]


def _by_files(groups: list[RowGroup]) -> list[RowGroup]:
    """Files in the order in which a bin got them, the groups of each in their own."""
    order = {file: i for i, file in enumerate(dict.fromkeys(g.file for g in groups))}
    return sorted(groups, key=lambda g: (order[g.file], g.begin))
