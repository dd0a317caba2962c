"""Blocks as objects of the program, into a dataset and out of it; sizes of batches; random seeds."""
# cluster: 4 CPU

import numpy as np
import pandas as pd
import pyarrow as pa
import ray
from ray.data import RandomSeedConfig


def sizes(batch):
    return {"rows": np.array([len(batch["data"])])}


def main():
    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True

    items = ray.data.from_items([{"a": i} for i in range(3)])
    print(items)
    print(type(items).__name__, items.num_blocks(), items.size_bytes(), items.input_files())
    print(ray.data.from_pandas([pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [3]})]))
    print(ray.data.from_numpy([np.zeros(2), np.ones(2)]).num_blocks())
    print(ray.data.from_arrow(pa.table({"x": [1, 2]})).num_blocks())
    print(ray.data.range(1000).size_bytes())

    ds = ray.data.range(6, override_num_blocks=2)
    print([ray.get(ref)["id"].tolist() for ref in ds.to_pandas_refs()])
    print([ray.get(ref).column_names for ref in ds.to_arrow_refs()])
    print([ray.get(ref) for ref in ds.to_numpy_refs()])
    two = ds.map(lambda row: {"id": row["id"], "double": 2 * row["id"]})
    print([sorted(ray.get(ref)) for ref in two.to_numpy_refs()])
    print([ray.get(ref).tolist() for ref in two.to_numpy_refs(column="double")])
    bundles = list(ds.iter_internal_ref_bundles())
    print(sum(bundle.num_rows() for bundle in bundles))
    print([ray.get(entry.ref).num_rows for bundle in bundles for entry in bundle.blocks])

    frame = ray.put(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}))
    print(ray.data.from_pandas_refs([frame, frame]))
    print(ray.data.from_arrow_refs(ray.put(pa.table({"n": [5, 6]}))).take_all())
    print(ray.data.from_numpy_refs([ray.put(np.arange(3))]).take_all())
    try:
        ray.data.from_pandas_refs([1])
    except ValueError as error:
        print(error)

    megabytes = ray.data.range_tensor(40, shape=(1000, 128), override_num_blocks=1)
    print(megabytes.map_batches(sizes, batch_size="auto").take_all())
    for options in ({"batch_size": 0}, {"num_gpus": 1}, {"num_gpus": 1, "batch_size": "auto"}):
        try:
            ds.map_batches(lambda batch: batch, **options)
        except ValueError as error:
            print(str(error).split(". ")[0])

    blocks = ray.data.range(6, override_num_blocks=3).materialize()
    rows = [row["id"] for row in blocks.randomize_block_order(seed=3).take_all()]
    print(sorted(rows), [rows[i + 1] - rows[i] for i in (0, 2, 4)])
    many = ray.data.range(100, override_num_blocks=1)
    for reseed in (False, True):
        config = RandomSeedConfig(seed=7, reseed_after_execution=reseed)
        shuffled = many.random_shuffle(seed=config)
        first, second = ([r["id"] for r in shuffled.take_all()] for _ in range(2))
        print(reseed, first == second, sorted(first) == sorted(second))
    try:
        RandomSeedConfig(seed=0.5)
    except ValueError as error:
        print(error)

    ds.set_name("numbers")
    print(ds.name, ds.context is not None)


if __name__ == "__main__":
    main()
