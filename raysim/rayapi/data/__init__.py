"""The module ``ray.data`` of a program: lazy datasets whose functions really run.

Real counterpart: ``ray/data/__init__.py`` (2.60).
"""

from raysim.rayapi.data.context import DataContext, ExecutionOptions
from raysim.rayapi.data.dataset import ActorPoolStrategy, Dataset, MaterializedDataset
from raysim.rayapi.data.read import from_items, from_numpy, from_pandas, range, range_tensor  # noqa: A004  (Ray's name)
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "ActorPoolStrategy", "DataContext", "Dataset", "ExecutionOptions", "MaterializedDataset",
    "from_items", "from_numpy", "from_pandas", "range", "range_tensor",
]  # fmt: skip
__getattr__ = getattr_of("ray.data")
