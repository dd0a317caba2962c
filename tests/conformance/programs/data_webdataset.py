"""WebDataset tars: samples by their names, decoders, what is chosen, and tars that are written."""
# cluster: 4 CPU

import io
import json
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import ray


def tar_of(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def array_bytes(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def shown(row):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in sorted(row.items())
        if name != "__url__"
    }


folder = Path(tempfile.mkdtemp())
for shard in range(2):
    members = []
    for number in range(3):
        key = f"{shard}{number}"
        members += [
            (f"{key}.cls", str(number).encode()),
            (f"{key}.json", json.dumps({"weight": number / 2, "tags": ["a", "b"]}).encode()),
            (f"{key}.npy", array_bytes(np.full((2, 2), number))),
            (f"{key}.txt", f"caption {key}".encode()),
        ]
    tar_of(folder / f"shard-{shard}.tar", members)

ds = ray.data.read_webdataset(str(folder))
print(ds.count(), sorted(ds.schema().names))
for row in sorted(ds.take_all(), key=lambda row: row["__key__"]):
    print(shown(row))
print(sorted({Path(row["__url__"]).name for row in ds.take_all()}))

chosen = ray.data.read_webdataset(str(folder), suffixes=["txt", "*.cls"])
print(shown(chosen.sort("__key__").take(1)[0]))
raw = ray.data.read_webdataset(str(folder), decoder=None, fileselect=["*.txt"])
print(shown(raw.sort("__key__").take(1)[0]))
renamed = ray.data.read_webdataset(
    str(folder), filerename=lambda name: name.replace(".txt", ".text"), suffixes=["text"]
)
print(shown(renamed.sort("__key__").take(1)[0]))


def louder(sample):
    return {**sample, "txt": sample["txt"].upper()}


print(
    shown(ray.data.read_webdataset(str(folder), decoder=[True, louder]).sort("__key__").take(1)[0])
)

out = folder / "out"
labelled = ray.data.from_items([{"__key__": f"k{i}", "txt": f"t{i}", "cls": i} for i in range(4)])
labelled.repartition(1).write_webdataset(str(out))
written = sorted(out.glob("*.tar"))
print(len(written))
with tarfile.open(written[0]) as archive:
    print([(m.name, m.size, oct(m.mode), m.uname) for m in archive])
again = ray.data.read_webdataset(str(out))
print([shown(row) for row in again.sort("__key__").take_all()])

torn = folder / "torn"
torn.mkdir()
tar_of(torn / "a.tar", [("1.txt", b"x"), ("2.txt", b"y"), ("1.cls", b"0")])
try:
    ray.data.read_webdataset(str(torn)).take_all()
except Exception as error:
    print("not contiguous" in str(error))
unsafe = folder / "unsafe"
unsafe.mkdir()
tar_of(unsafe / "a.tar", [("1.pkl", b"x")])
try:
    ray.data.read_webdataset(str(unsafe)).take_all()
except Exception as error:
    print("Refusing to unpickle" in str(error) or "Refusing to load" in str(error))
