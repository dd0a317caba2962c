"""Files with options: Arrow's of CSV, pictures' sizes, files that are not what they should be."""
# cluster: 4 CPU

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import ray
from PIL import Image
from ray.data.datasource import Partitioning, PathPartitionFilter


def tried(call):
    try:
        print(call())
    except Exception as error:
        cause = getattr(error, "cause", None)
        print(type(cause or error).__name__, isinstance(error, ValueError))


def parquet(root):
    rows = ray.data.range(10, override_num_blocks=1)
    rows.write_parquet(str(root / "most"), max_rows_per_file=4)
    print(sorted(len(pq.read_table(file)) for file in (root / "most").iterdir()))
    rows.write_parquet(str(root / "gzip"), compression="gzip")
    (file,) = (root / "gzip").iterdir()
    print(pq.ParquetFile(file).metadata.row_group(0).column(0).compression)
    tried(lambda: rows.write_parquet(str(root / "x"), max_rows_per_file=4, min_rows_per_file=6))
    tried(lambda: rows.write_parquet(str(root / "x"), partition_cols=["q"]))
    (root / "empty").mkdir()
    tried(lambda: ray.data.read_parquet(str(root / "empty")))
    tried(lambda: ray.data.read_parquet(str(root / "most"), file_extensions=["zz"]))
    parts = [{"y": 2020 + i % 2, "v": i} for i in range(4)]
    by = ray.data.from_items(parts, override_num_blocks=1)
    by.write_parquet(str(root / "by"), partition_cols=["y"])
    typed = Partitioning("hive", field_types={"y": int})
    print(ray.data.read_parquet(str(root / "by"), partitioning=typed).sort("v").take(1))
    wanted = PathPartitionFilter.of(lambda part: part["y"] == "2020", style="hive")
    print(ray.data.read_parquet(str(root / "by"), partition_filter=wanted).count())


def csv(root):
    (root / "a.csv").write_text("a;b\n1;x\n2;\n")
    semicolons = {"parse_options": pc.ParseOptions(delimiter=";")}
    kinds = pc.ConvertOptions(column_types={"a": pa.string()})
    names = pc.ReadOptions(skip_rows=1, column_names=["p", "q"])
    path = str(root / "a.csv")
    print(ray.data.read_csv(path, convert_options=kinds, **semicolons).schema())
    print(ray.data.read_csv(path, read_options=names, **semicolons).take_all())
    with gzip.open(root / "z.csv.gz", "wt") as file:
        file.write("a\n5\n")
    print(ray.data.read_csv(str(root / "z.csv.gz")).take_all())
    (root / "bad.csv").write_text("a,b\n1\n")
    tried(lambda: ray.data.read_csv(str(root / "bad.csv")).take_all())


def pictures(root):
    Image.fromarray(np.full((4, 6, 3), 9, np.uint8)).save(root / "a.png")
    found = ray.data.read_images(str(root / "a.png"), size=(2, 3), mode="L")
    print(found.take_batch()["image"].shape)
    tried(lambda: ray.data.read_images(str(root / "a.png"), size=(0, 1)))
    tried(lambda: ray.data.read_images(str(root / "a.png"), mode="zz").take(1))
    (root / "no.png").write_text("no")
    tried(lambda: ray.data.read_images(str(root / "no.png")).take(1))


def texts(root):
    (root / "l.txt").write_bytes("\u00e9".encode("latin-1"))
    print(len(ray.data.read_text(str(root / "l.txt"), encoding="latin-1").take_all()))
    tried(lambda: ray.data.read_text(str(root / "l.txt")).take_all())
    (root / "bad.json").write_text("{a")
    tried(lambda: ray.data.read_json(str(root / "bad.json")).take_all())


def main():
    ray.init()
    with tempfile.TemporaryDirectory() as folder:
        for part in (parquet, csv, pictures, texts):
            part(Path(folder))


if __name__ == "__main__":
    main()
