"""Parquet read by a schema; a filter of Arrow's is refused as Ray refuses it."""
# cluster: 2 CPU

import tempfile

import pyarrow as pa
import pyarrow.dataset as pads
import ray
from ray.data.expressions import col


def main():
    ray.init()
    folder = tempfile.mkdtemp()
    rows = [{"id": i, "kind": "ab"[i % 2], "size": i * 1.5} for i in range(12)]
    ray.data.from_items(rows).write_parquet(folder, partition_cols=["kind"])
    try:
        ray.data.read_parquet(folder, filter=pads.field("id") > 8)
    except ValueError as error:
        print(error)
    large = ray.data.read_parquet(folder).filter(expr=col("id") > 8)
    print(sorted(large.schema().names), sorted(row["id"] for row in large.take_all()))
    narrow = ray.data.read_parquet(folder, schema=pa.schema([("id", pa.int32())]))
    print(str(narrow.schema().types[narrow.schema().names.index("id")]), narrow.count())


if __name__ == "__main__":
    main()
