"""The module ``ray.data`` of a program: lazy datasets whose functions really run.

Real counterpart: ``ray/data/__init__.py`` (2.60).
"""

from raysim.rayapi.data import (
    aggregate,
    block,
    collate,
    context,
    datasource,
    datatype,
    expressions,
    partitioning,
    preprocessors,
)
from raysim.rayapi.data.context import (
    DataContext,
    DatasetContext,
    ExecutionOptions,
    ExecutionResources,
)
from raysim.rayapi.data.dataset import Dataset, MaterializedDataset
from raysim.rayapi.data.datasource import (
    BlockBasedFileDatasink,
    Datasink,
    Datasource,
    ReadTask,
    RowBasedFileDatasink,
    read_datasource,
)
from raysim.rayapi.data.elsewhere import READERS
from raysim.rayapi.data.exchanges import MixStoppingCondition
from raysim.rayapi.data.files import (
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_orc,
    read_parquet,
    read_text,
    read_webdataset,
)
from raysim.rayapi.data.grouped import GroupedData
from raysim.rayapi.data.handed import from_arrow_refs, from_numpy_refs, from_pandas_refs
from raysim.rayapi.data.iterator import DataIterator
from raysim.rayapi.data.partitioning import FileShuffleConfig
from raysim.rayapi.data.preprocessors import Preprocessor
from raysim.rayapi.data.randomness import RandomSeedConfig
from raysim.rayapi.data.read import (
    from_arrow,
    from_blocks,
    from_huggingface,
    from_items,
    from_numpy,
    from_pandas,
    from_torch,
    range,  # noqa: A004  (Ray's name)
    range_tensor,
)
from raysim.rayapi.data.schema import Schema
from raysim.rayapi.data.sinks import read_sql
from raysim.rayapi.data.strategies import ActorPoolStrategy, TaskPoolStrategy
from raysim.rayapi.data.writes import SaveMode
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "ActorPoolStrategy",
    "BlockBasedFileDatasink",
    "DataContext",
    "DataIterator",
    "Dataset",
    "DatasetContext",
    "Datasink",
    "Datasource",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "GroupedData",
    "MaterializedDataset",
    "MixStoppingCondition",
    "Preprocessor",
    "RandomSeedConfig",
    "ReadTask",
    "RowBasedFileDatasink",
    "SaveMode",
    "Schema",
    "TaskPoolStrategy",
    "aggregate",
    "block",
    "collate",
    "context",
    "datasource",
    "datatype",
    "expressions",
    "from_arrow",
    "from_arrow_refs",
    "from_blocks",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_torch",
    "partitioning",
    "preprocessors",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_images",
    "read_json",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_webdataset",
]  # fmt: skip
NodeIdStr = str
"""As annotations name it."""
__getattr__ = getattr_of("ray.data")
globals().update(READERS)
__all__ += list(READERS)
