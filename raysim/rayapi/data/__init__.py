"""The module ``ray.data`` of a program: lazy datasets whose functions really run.

Real counterpart: ``ray/data/__init__.py`` (2.60).
"""

from raysim.rayapi.data import aggregate, collate
from raysim.rayapi.data.context import DataContext, ExecutionOptions
from raysim.rayapi.data.dataset import (
    ActorPoolStrategy,
    Dataset,
    MaterializedDataset,
    TaskPoolStrategy,
)
from raysim.rayapi.data.grouped import GroupedData
from raysim.rayapi.data.iterator import DataIterator
from raysim.rayapi.data.schema import Schema
from raysim.rayapi.data.read import from_items, from_numpy, from_pandas, range, range_tensor  # noqa: A004  (Ray's name)
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "ActorPoolStrategy", "DataContext", "DataIterator", "Dataset", "ExecutionOptions",
    "GroupedData", "MaterializedDataset", "Schema", "TaskPoolStrategy", "aggregate", "collate",
    "from_items", "from_numpy", "from_pandas", "range", "range_tensor",
]  # fmt: skip
__getattr__ = getattr_of("ray.data")
