"""Writing where something is: modes; rows per file; folders by columns."""
# cluster: 2 CPU

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray
from ray.data import SaveMode


def there(folder):
    files = sorted(folder.rglob("*.parquet"))
    return len(files), sum(pq.ParquetFile(file).metadata.num_rows for file in files)


def main():
    ray.init()
    folder = Path(tempfile.mkdtemp())
    ds = ray.data.range(12, override_num_blocks=3)
    print(SaveMode.APPEND, SaveMode("overwrite").value, SaveMode.IGNORE == "ignore")
    ds.write_parquet(str(folder / "a"))
    print(there(folder / "a"))
    ds.write_parquet(str(folder / "a"), mode=SaveMode.APPEND)
    print(there(folder / "a"))
    ds.write_parquet(str(folder / "a"), mode=SaveMode.IGNORE)
    print(there(folder / "a"))
    ds.write_parquet(str(folder / "a"), mode=SaveMode.OVERWRITE)
    print(there(folder / "a"))
    try:
        ds.write_parquet(str(folder / "a"), mode="error")
    except ValueError as error:
        print(str(error).replace(str(folder), ""))
    ds.write_csv(str(folder / "b"), mode=SaveMode.ERROR)
    print(len(list((folder / "b").iterdir())))

    ds.write_parquet(str(folder / "c"), min_rows_per_file=6)
    sizes = [pq.ParquetFile(f).metadata.num_rows for f in (folder / "c").iterdir()]
    print(sum(sizes), max(sizes) >= 6)

    named = ds.map(lambda r: {"id": r["id"], "odd": int(r["id"] % 2), "kind": "ab"[r["id"] // 6]})
    named.write_parquet(str(folder / "d"), partition_cols=["odd", "kind"])
    print(
        sorted({str(f.parent.relative_to(folder / "d")) for f in (folder / "d").rglob("*.parq*")})
    )
    back = ray.data.read_parquet(str(folder / "d"))
    print(sorted(back.schema().names), back.count(), back.sum("id"))
    as_text(folder)


def as_text(folder):
    """CSV as Arrow writes it, JSON as pandas does: whole floats come back as integers of one."""
    ds = ray.data.from_items([{"a": 1, "b": 2.0, "c": "x,y"}])
    ds.write_csv(str(folder / "csv"))
    ds.write_json(str(folder / "json"))
    for kind, read in (("csv", ray.data.read_csv), ("json", ray.data.read_json)):
        (file,) = (folder / kind).iterdir()
        print(file.read_text(), read(str(folder / kind)).take_all())
    try:
        ds.rename_columns({"nope": "d"}).take_all()
    except ray.exceptions.RayTaskError as error:
        print("KeyError" in str(error))
    print(hasattr(ds, "nbytes"), hasattr(ds.iterator(), "nbytes"))


if __name__ == "__main__":
    main()
