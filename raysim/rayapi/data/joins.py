"""``Dataset.join``: rows of two datasets whose keys are equal, side by side.

Real counterpart: ``ray/data/_internal/execution/operators/join.py``: both sides are shuffled by the
hash of their keys, and a task joins what has met in a partition. Missing keys equal nothing, not
even each other. Rows of a partition come in the order of this side, then those of the other alone;
Ray's (Polars') come in any.

Not modelled: keys of unlike types, which Polars refuses; the environment that reduces run in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import keys
from raysim.rayapi.data.columns import Array, Columns, column_of, joined, missing, rows_of, taken
from raysim.rayapi.data.exchanges import Task
from raysim.rayapi.data.keys import SortKey
from raysim.rayapi.library_code import session_here
from raysim.raylibs.data import specs

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset

TYPES = (
    "inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti",
    "right_anti",
)  # fmt: skip
_OTHER = "\0"
"""Before the names of the other side's columns, until they meet this side's."""
_NOBODY = -1


class Joining(NamedTuple):
    """What is joined, by which columns."""

    kind: str
    on: tuple[str, ...]
    right_on: tuple[str, ...]
    left_suffix: str | None
    right_suffix: str | None


@program_call
def join(
    self: Dataset,
    ds: Dataset,
    join_type: str,
    num_partitions: int,
    on: Sequence[str] = ("id",),
    right_on: Sequence[str] | None = None,
    left_suffix: str | None = None,
    right_suffix: str | None = None,
    *,
    partition_size_hint: int | None = None,
    aggregator_ray_remote_args: dict[str, Any] | None = None,
    validate_schemas: bool = False,
) -> Dataset:
    """``Dataset.join``."""
    del partition_size_hint, aggregator_ray_remote_args
    for name, said in (("on", on), ("right_on", right_on or on)):
        if not isinstance(said, tuple | list):
            raise ValueError(f"Expected tuple or list as `{name}` (got {type(said).__name__})")
    how = Joining(join_type, tuple(on), tuple(right_on or on), left_suffix, right_suffix)
    if validate_schemas:
        _validate(how, self.schema(), ds.schema())
    if join_type not in TYPES:
        raise ValueError(
            f"Invalid join type: '{join_type}'. Supported join types are: {', '.join(TYPES)}."
        )
    session, spec = session_here(), ds._spec  # noqa: SLF001  (its own class's, so to speak)

    def met(blocks: list[Columns]) -> list[Columns]:
        return [side_by_side(*_sides(blocks), how)]

    def scattered(names: tuple[str, ...], mark: str) -> Task:
        def work(blocks: list[Columns]) -> list[Columns]:
            whole = joined(blocks)
            SortKey.of(list(names)).check(list(whole))
            parts = keys.parted(whole, keys.by_hash(whole, names, num_partitions), num_partitions)
            return [{mark + name: column for name, column in part.items()} for part in parts]

        return Task(session=session, name="join", work=work)

    made = specs.Join(
        other=spec, partitions=num_partitions, left_hook=scattered(how.on, ""),
        right_hook=scattered(how.right_on, _OTHER),
        reduce_hook=Task(session=session, name="join", work=met),
    )  # fmt: skip
    return self._then(made, ds)


def _validate(how: Joining, left: Any, right: Any) -> None:
    """``Join._validate_schemas``."""

    def said(names: tuple[str, ...]) -> str:
        return "[" + ", ".join(f"'{name}'" for name in names) + "]"

    if not how.on:
        raise ValueError(
            f"At least 1 column name to join on has to be provided (got {said(how.on)})"
        )
    if len(how.on) != len(how.right_on):
        raise ValueError(
            "Number of columns provided for left and right datasets has to match "
            f"(got {said(how.on)} and {said(how.right_on)})"
        )

    def types(schema: Any, names: tuple[str, ...]) -> list[Any]:
        found = zip(schema.names, schema.types, strict=True) if schema else ()
        return [kind for name, kind in found if name in names]

    # Ray asks each side for the names of the other's keys
    if types(left, how.right_on) != types(right, how.on):
        raise ValueError(
            "Key columns are expected to be present and have the same types in both left and "
            f"right operands of the join operation: left has {left}, but right has {right}"
        )


def _sides(pieces: list[Columns]) -> tuple[Columns, Columns]:
    """Pieces of a partition, by whose they are; without rows they still have columns."""
    sides: tuple[list[Columns], list[Columns]] = ([], [])
    for piece in pieces:
        others = any(name.startswith(_OTHER) for name in piece)
        sides[others].append({name.removeprefix(_OTHER): c for name, c in piece.items()})
    left, right = (joined(side) or next(filter(None, side), {}) for side in sides)
    return left, right


# ---- in a partition ------------------------------------------------------------------------------


def side_by_side(left: Columns, right: Columns, how: Joining) -> Columns:
    """Both sides of a partition, joined.

    Raises
    ------
    ValueError
        Columns of both sides have one name, and nobody said what to call them.
    """
    side, _, rest = how.kind.partition("_")
    if rest in ("semi", "anti"):
        if side == "right":
            left, right = right, left
            how = how._replace(on=how.right_on, right_on=how.on)
        found = _partners(left, right, how)
        keep = [bool(others) == (rest == "semi") for others in found]
        return taken(left, np.asarray(keep, dtype=bool))
    left = left or _nothing(how.on)
    right = right or _nothing(how.right_on)
    rows, others = _pairs(_partners(left, right, how), rows_of(right), how.kind)
    mine, its = _names(left, right, how)
    made = {mine[name]: _picked(column, rows) for name, column in left.items()}
    beside = {its[name]: _picked(column, others) for name, column in right.items()}
    if how.kind == "right_outer":  # the keys are the other's, among its columns
        return {name: c for name, c in made.items() if name not in how.on} | beside
    keys_of = dict(zip(how.on, (beside.pop(its[name]) for name in how.right_on), strict=True))
    if how.kind == "full_outer":
        alone = rows == _NOBODY
        made |= {name: _either(alone, its, made[name]) for name, its in keys_of.items()}
    return made | beside


def _either(first: Array, ones: Array, others: Array) -> Array:
    """Values of ``ones`` where ``first`` says so."""
    if not first.any():
        return others
    values = zip(first.tolist(), ones.tolist(), others.tolist(), strict=True)
    return column_of([one if said else other for said, one, other in values])


def _nothing(names: tuple[str, ...]) -> Columns:
    return {name: np.zeros(0) for name in names}


def _partners(left: Columns, right: Columns, how: Joining) -> list[list[int]]:
    """Of each row of this side, the rows of the other with its keys."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(_keys(right, how.right_on)):
        if key is not None:
            places.setdefault(key, []).append(row)
    return [[] if key is None else places.get(key, []) for key in _keys(left, how.on)]


def _keys(columns: Columns, names: tuple[str, ...]) -> list[tuple[Any, ...] | None]:
    if not rows_of(columns):
        return []
    gone = np.logical_or.reduce([missing(columns[name]) for name in names])
    values = zip(*(columns[name].tolist() for name in names), strict=True)
    return [None if lost else key for lost, key in zip(gone.tolist(), values, strict=True)]


def _pairs(partners: list[list[int]], count: int, kind: str) -> tuple[Array, Array]:
    """Rows of both sides that stand beside each other; ``_NOBODY`` where a side has none."""
    rows: list[int] = []
    others: list[int] = []
    alone_too = kind in ("left_outer", "full_outer")
    for row, found in enumerate(partners):
        beside = [_NOBODY] if alone_too and not found else found
        rows += [row] * len(beside)
        others += beside
    if kind in ("right_outer", "full_outer"):
        alone = sorted(set(range(count)) - set(others))
        rows += [_NOBODY] * len(alone)
        others += alone
    return np.asarray(rows, dtype=np.int64), np.asarray(others, dtype=np.int64)


def _picked(column: Array, rows: Array) -> Array:
    """Values of rows; None of nobody."""
    if not len(column):
        return column_of([None] * len(rows)) if len(rows) else column
    found = column[rows]
    nobody = rows == _NOBODY
    if nobody.any():
        values = found.tolist()
        return column_of([None if lost else v for lost, v in zip(nobody, values, strict=True)])
    return found


def _names(left: Columns, right: Columns, how: Joining) -> tuple[dict[str, str], dict[str, str]]:
    """What columns of each side are called in the end."""
    both = set(left) & (set(right) - set(how.right_on))
    if both and how.left_suffix is None and how.right_suffix is None:
        raise ValueError(
            "Left and right columns suffixes cannot be both None "
            f"(overlapping columns: {sorted(both)})"
        )
    mine = both - set(how.on)
    _check_suffix("left", how.left_suffix, set(left), mine)
    _check_suffix("right", how.right_suffix, set(right), both)
    here = {name: name + (how.left_suffix or "") * (name in mine) for name in left}
    there = {name: name + (how.right_suffix or "") * (name in both) for name in right}
    taken_names = set(here.values())
    return here, {
        name: f"{said}_right" if said in taken_names and name not in how.right_on else said
        for name, said in there.items()
    }


def _check_suffix(side: str, suffix: str | None, names: set[str], renamed: set[str]) -> None:
    """``_validate_suffix_collision``."""
    clash = sorted(f"{n}{suffix}" for n in renamed if f"{n}{suffix}" in names - renamed)
    if suffix and clash:
        raise ValueError(
            f"{side.capitalize()} columns suffix {suffix!r} collides with existing "
            f"{side} columns: {clash}"
        )
