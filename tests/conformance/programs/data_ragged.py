"""Rows that lack a column of others, in a block and between blocks; read tasks put together."""
# cluster: 2 CPU

import ray


class Same:
    def __call__(self, batch):
        return {"id": batch["id"], "rows": [len(batch["id"])] * len(batch["id"])}


def main():
    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    items = [{"a": 1}, {"a": 2, "b": "x"}]
    print(ray.data.from_items(items).take_all())
    print(ray.data.from_items(items, override_num_blocks=1).take_all())
    print(ray.data.from_items([{"a": 1, "c": 2.5}, {"b": "x"}], override_num_blocks=1).take_all())

    one = ray.data.range(4, override_num_blocks=1)
    even = one.map(lambda r: {"id": r["id"]} | ({} if r["id"] % 2 else {"even": r["id"]}))
    print(even.take_all())
    print(sorted(even.schema().names), [str(t) for t in even.schema().types])
    two = ray.data.range(4, override_num_blocks=2)
    sides = two.map(lambda r: {"x": r["id"]} if r["id"] < 2 else {"y": float(r["id"])})
    print(sides.take_all())
    print(sides.repartition(1).take_all())

    # reads, a map and batches larger than a read task's rows in one operator
    ds = ray.data.range(40, override_num_blocks=20).map(lambda r: r)
    rows = ds.map_batches(Same, batch_size=8, concurrency=1).take_all()
    print(len(rows), [r["id"] for r in rows] == list(range(40)), {r["rows"] for r in rows})


if __name__ == "__main__":
    main()
