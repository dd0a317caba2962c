"""Datasets of objects that a program has.

Real counterpart: ``from_*_refs`` of ``ray/data/read_api.py``.

Not modelled: the small tasks that look at the metadata of what is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from raysim.rayapi import api
from raysim.rayapi.calls import program_call
from raysim.rayapi.data.block import BlockMetadata
from raysim.rayapi.data.dataset import MaterializedDataset
from raysim.rayapi.data.datasource import Datasource, ReadTask, read_datasource
from raysim.rayapi.objects import ObjectRef


def from_refs(name: str, refs: Any, made: Callable[[Any], Any]) -> MaterializedDataset:
    """Of objects, each made a block of by a task that gets it.

    Raises
    ------
    ValueError
        Something else than references is given.
    """
    given = [refs] if isinstance(refs, ObjectRef) else refs
    if not isinstance(given, list):
        raise ValueError(f"Expected Ray object ref or list of Ray object refs, got {type(refs)}")
    for ref in given:
        if not isinstance(ref, ObjectRef):
            raise ValueError(
                f"Expected list of Ray object refs, got list containing {type(ref)}"
            )  # fmt: skip

    reading = read_datasource(_Objects(name, given, made), override_num_blocks=len(given))
    return reading.materialize()


class _Objects(Datasource):
    """One read task for each."""

    def __init__(self, name: str, refs: list[ObjectRef], made: Callable[[Any], Any]) -> None:
        self._name, self._refs, self._made = name, refs, made

    def get_name(self) -> str:
        """In the operator's name."""
        return self._name

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """As ``Datasource``."""
        del parallelism, per_task_row_limit, data_context
        return [ReadTask(partial(_got, r, self._made), BlockMetadata()) for r in self._refs]


def _got(ref: ObjectRef, made: Callable[[Any], Any]) -> list[Any]:
    return [made(api.get(ref))]


def _itself(value: Any) -> Any:
    return value


def _data(array: Any) -> Any:
    return {"data": array}


@program_call
def from_pandas_refs(dfs: Any) -> MaterializedDataset:
    """``ray.data.from_pandas_refs``."""
    return from_refs("Pandas", dfs, _itself)


@program_call
def from_arrow_refs(tables: Any) -> MaterializedDataset:
    """``ray.data.from_arrow_refs``."""
    return from_refs("Arrow", tables, _itself)


@program_call
def from_numpy_refs(ndarrays: Any) -> MaterializedDataset:
    """``ray.data.from_numpy_refs``: a column ``data``."""
    return from_refs("Numpy", ndarrays, _data)
