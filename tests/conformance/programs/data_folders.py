"""Files in folders that say something, in other orders; databases, pictures and ORC."""
# cluster: 4 CPU

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.dataset
import ray
from ray.data import FileShuffleConfig
from ray.data.datasource import Partitioning, PathPartitionFilter
from ray.data.datasource.partitioning import PartitionStyle, PathPartitionParser
from ray.data.expressions import col


def tables(root):
    for year, month in ((2021, "01"), (2021, "02"), (2022, "01")):
        folder = root / f"year={year}" / f"month={month}"
        folder.mkdir(parents=True)
        (folder / "sales.csv").write_text(f"sold\n{year}\n{month}\n")
    print(sorted(map(str, ray.data.read_csv(str(root)).take_all())))
    print(ray.data.read_csv(str(root), partitioning=None).columns())
    typed = Partitioning("hive", field_types={"year": int})
    print(sorted(r["year"] for r in ray.data.read_csv(str(root), partitioning=typed).take_all()))
    first = PathPartitionFilter.of(lambda found: found["month"] == "01")
    print(ray.data.read_csv(str(root), partition_filter=first).count())
    print(len(ray.data.read_csv(str(root)).input_files()))
    for wrong in (["year"], ["month", "year"]):
        try:
            PathPartitionParser(Partitioning("hive", field_names=wrong))("year=1/month=2/f.csv")
        except ValueError as error:
            print(error)
    try:
        PathPartitionParser(Partitioning(PartitionStyle.DIRECTORY))
    except ValueError as error:
        print(error)
    clash = root / "year=2023" / "sales.csv"
    clash.parent.mkdir()
    clash.write_text("year\n2023\n2023\n")
    print(ray.data.read_csv(str(clash)).take_all())


def texts(root):
    tabs = root / "tabs.csv"
    tabs.write_text("a\tb\n1\t2\n")
    options = pyarrow.csv.ParseOptions(delimiter="\t")
    print(ray.data.read_csv(str(tabs), parse_options=options).take_all())
    ray.data.range(10).write_parquet(str(root / "rows"))
    few = ray.data.read_parquet(str(root / "rows")).filter(expr=col("id") > 7)
    print(sorted(row["id"] for row in few.take_all()))


def pictures(root):
    for kind, shade in (("cat", 0), ("dog", 255)):
        folder = root / kind
        data = [{"image": np.full((4, 6, 3), shade, dtype=np.uint8)} for _ in range(2)]
        ray.data.from_items(data).write_images(str(folder), column="image")
        print(sorted(path.suffix for path in folder.iterdir()))
    said = Partitioning("dir", field_names=["kind"], base_dir=str(root))
    found = ray.data.read_images(str(root), partitioning=said)
    print(found.columns())
    print(sorted((row["kind"], int(row["image"].max())) for row in found.take_all()))


def orders(root):
    root.mkdir()
    for number in range(8):
        (root / f"{number}.txt").write_text(f"{number}\n")
    for shuffle in (FileShuffleConfig(seed=1), FileShuffleConfig(1, False), None):
        found = ray.data.read_text(str(root), shuffle=shuffle, override_num_blocks=1)
        first, second = ([row["text"] for row in found.take_all()] for _ in range(2))
        print(sorted(first) == sorted(second), first == second)
    try:
        ray.data.read_text(str(root), shuffle="rows").take_all()
    except ValueError as error:
        print(error)


def databases(root):
    def connect():
        return sqlite3.connect(root / "films.db")

    with connect() as connection:
        connection.execute("CREATE TABLE film (title, year, score)")
    films = [{"title": f"film {i}", "year": 1970 + i, "score": i / 2} for i in range(3)]
    ray.data.from_items(films).write_sql("INSERT INTO film VALUES(?, ?, ?)", connect)
    found = ray.data.read_sql("SELECT title, score FROM film ORDER BY year", connect)
    print(found.take_all())
    late = "SELECT year FROM film WHERE year > ?"
    print(
        sorted(r["year"] for r in ray.data.read_sql(late, connect, sql_params=(1970,)).take_all())
    )


def main():
    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tables(root / "tables")
        texts(root)
        pictures(root / "pictures")
        orders(root / "orders")
        databases(root)
        ray.data.range(4).write_orc(str(root / "orc"))
        print(sorted(row["id"] for row in ray.data.read_orc(str(root / "orc")).take_all()))


if __name__ == "__main__":
    main()
