"""What columns hold: lists, tensors, structs, times; how types and expressions print."""
# cluster: 4 CPU

import datetime
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import ray
import torch
from ray.data.datasource.datasource import Datasource
from ray.data.datasource.file_datasink import BlockBasedFileDatasink
from ray.data.datatype import DataType
from ray.data.expressions import Operation, col, lit, udf


def show(ds):
    print(ds.schema())
    print(ds.take_all())


def lists():
    ds = ray.data.from_items([{"m": [1, 2]}, {"m": [3, 4]}])
    show(ds)
    print([type(value).__name__ for value in ds.take_batch()["m"]])
    print(ds.take_batch(batch_format="pyarrow").schema.field("m").type)
    show(ds.map_batches(lambda table: table, batch_format="pyarrow"))
    show(ds.map_batches(lambda frame: frame, batch_format="pandas"))
    show(ds.map_batches(lambda batch: batch))
    show(ds.map(lambda row: {"sum": sum(row["m"]), "words": ["x", "y"], "half": [1.5]}))
    show(ds.add_column("c", lambda frame: [[0]] * len(frame)))
    show(ds.with_column("sorted", col("m").list.sort(order="descending")))
    nested = ray.data.from_items([{"n": [[1], [2, 3]]}])
    show(nested.with_column("flat", col("n").list.flatten()))
    print(ray.data.from_items([(1, 2)]).take_all())


def tensors():
    ones = ray.data.range(2, override_num_blocks=1).map_batches(
        lambda batch: {"t": np.ones((len(batch["id"]), 2), np.uint8), "l": [[1]] * len(batch["id"])}
    )
    show(ones)
    show(ones.map_batches(lambda table: table, batch_format="pyarrow"))
    ragged = ray.data.from_items([{"a": np.array([1, 2])}, {"a": np.array([1, 2, 3])}])
    show(ragged)
    of_torch = ray.data.range(2, override_num_blocks=1).map_batches(
        lambda batch: {"t": torch.as_tensor(batch["id"] * 2), "l": [torch.ones(2)] * 2}
    )
    show(of_torch)
    show(of_torch.map(lambda row: {"s": torch.tensor(1.5), "v": torch.zeros(2)}))


def others():
    show(ray.data.from_items([{"s": {"x": 1, "y": "a"}}]))
    show(ray.data.from_items([{"a": None}, {"a": 1}]))
    show(ray.data.from_items([{"t": datetime.datetime(2020, 1, 2, 3, 4, 5)}]))
    gaps = {"n": [1, None, 3], "s": ["x", None, "z"], "t": ["2020-01-01", None, "2020-01-03"]}
    frame = pd.DataFrame(gaps | {"t": pd.to_datetime(gaps["t"])})
    missing = ray.data.from_pandas(frame)
    print(missing.take_all())
    print(missing.map_batches(lambda batch: batch, batch_format="pandas").take_all()[1])
    maps = pa.array([[("k", 1), ("l", 2)]], pa.map_(pa.string(), pa.int64()))
    keyed = ray.data.from_arrow(pa.table({"m": maps}))
    show(keyed)
    show(keyed.with_column("keys", col("m").map.keys()))
    show(keyed.with_column("values", col("m").map.values()).select_columns(["values"]))
    grouped = ray.data.from_items([{"g": 1, "v": 2}, {"g": 1, "v": 3}]).groupby("g")
    print(grouped.with_column("twice", col("v") * 2).sort("v").take_all())


def files(root):
    (root / "log.json").write_text('{"at": "2022-02-10T11:42:50", "size": 1}\n')
    show(ray.data.read_json(str(root / "log.json")))
    (root / "some.csv").write_text("a,b\n1,x\n")
    ds = ray.data.read_csv(str(root / "some.csv"))
    print(ds)
    print(ds.map(lambda row: row))
    print(ds.schema() is not None)
    print(ds)


def printed():
    both = (col("x") + 5) * col("y")
    print(both)
    print((~col("a").is_in([1, 2])).alias("z"))
    print(col("s").str.upper())
    print(lit(list(range(20))))
    print([Operation.ADD.value, Operation.IS_NOT_NULL.name])

    @udf(return_dtype=DataType.int64())
    def plus(a, b):
        return a

    print(plus(col("a"), b=lit(1)))
    print(ray.data.range(3).iterator())


def types():
    made = [
        DataType.fixed_size_list(DataType.float32(), 3),
        DataType.large_list(DataType.int64()),
        DataType.map(DataType.string(), DataType.int64()),
        DataType.from_numpy("float64"),
        DataType.from_numpy(np.dtype("int32")),
        DataType.infer_dtype(5),
        DataType.infer_dtype("hello"),
        DataType.infer_dtype(np.int32(42)),
        DataType.temporal("time32"),
        DataType(int),
    ]
    print(made)
    kinds = ("list", "map", "nested", "numerical", "integer", "string", "temporal", "null")
    for kind in kinds:
        print(kind, [bool(getattr(each, f"is_{kind}_type")()) for each in made])
    print([each.to_numpy_dtype() for each in made])
    print(DataType.int64() == DataType.from_arrow(pa.int64()), DataType(int).to_python_type())
    print(DataType.int64() == DataType.from_numpy("int64"), DataType.int64().is_of("temporal"))
    try:
        DataType.int64().to_python_type()
    except ValueError as error:
        print(error)


def main():
    ray.init()
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.set_config("mine", 1)
    print(context.get_config("mine"), context.get_config("other", "none"))
    print(Datasource.__name__, BlockBasedFileDatasink.__name__, pd.DataFrame.__name__)
    lists()
    tensors()
    others()
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder))
    printed()
    types()


if __name__ == "__main__":
    main()
