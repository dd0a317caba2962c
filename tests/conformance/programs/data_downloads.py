"""Expressions that fetch files and draw identifiers."""
# cluster: 2 CPU

import tempfile
from pathlib import Path

import ray
from ray.data.expressions import col, download, uuid


def main():
    ray.init()
    folder = Path(tempfile.mkdtemp())
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(b"x" * number)
    names = [str(folder / f"{number}.bin") for number in range(4)]
    items = [{"uri": name, "size": number} for number, name in enumerate(names)]
    items.append({"uri": "file://" + names[2], "size": 2})
    ds = ray.data.from_items(items, override_num_blocks=1).with_column("bytes", download("uri"))
    print(ds.schema().names)
    for row in sorted(ds.take_all(), key=lambda row: (row["size"], row["uri"])):
        print(row["size"], row["bytes"])
    there = ds.filter(expr=col("bytes").is_not_null())
    print(there.count(), sorted(len(row["bytes"]) for row in there.take_all()))
    ids = ray.data.range(5).with_column("key", uuid()).take_all()
    print(len({row["key"] for row in ids}), {len(row["key"]) for row in ids})
    print({row["key"][14] for row in ids})
    short = ray.data.range(2).with_column("key", uuid().str.replace("-", "")).take_all()
    print({len(row["key"]) for row in short})


if __name__ == "__main__":
    main()
