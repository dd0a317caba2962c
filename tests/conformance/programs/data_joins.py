"""Ray Data: joins of every type, keys of other names, suffixes, what is refused."""
# cluster: 4 CPU

import ray


def ordered(ds):
    return sorted((sorted(r.items()) for r in ds.take_all()), key=repr)


def columns(ds):
    return list(ds.take(1)[0])


def told(call):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, "(overlapping columns: ['double'])" in str(error))


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
doubles = ray.data.range(12, override_num_blocks=3).map(
    lambda r: {"id": r["id"], "double": r["id"] * 2}
)
squares = ray.data.range(9, override_num_blocks=2).map(
    lambda r: {"id": r["id"] + 6, "square": (r["id"] + 6) ** 2}
)
for kind in (
    "inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti",
    "right_anti",
):  # fmt: skip
    print(kind, ordered(doubles.join(squares, kind, num_partitions=3)))
    print(columns(doubles.join(squares, kind, num_partitions=3)))
lines = ray.data.from_items([{"item": i % 3, "order": i} for i in range(7)])
items = ray.data.from_items([{"key": k, "name": n} for k, n in enumerate("abcd")])
by_item = lines.join(items, "inner", 2, on=("item",), right_on=("key",))
print(ordered(by_item), columns(by_item))
print(ordered(lines.join(items, "right_outer", 2, on=("item",), right_on=("key",))))
print(columns(lines.join(items, "right_outer", 2, on=("item",), right_on=("key",))))
same = ray.data.from_items([{"id": i, "double": -i} for i in range(3)])
print(ordered(doubles.join(same, "inner", 2, left_suffix="_l", right_suffix="_r")))
print(ordered(doubles.join(same, "left_outer", 2, right_suffix="_r").limit(4))[0][1:] != [])
print(ordered(doubles.join(same, "left_semi", 2)))
told(lambda: doubles.join(same, "inner", 2).take_all())
told(lambda: doubles.join(same, "outer", 2))
told(lambda: doubles.join(same, "inner", 2, on="id"))
texts = ray.data.from_items([{"k": "a", "x": 1}, {"k": "c", "x": 2}, {"k": "b", "x": 3}])
more = ray.data.from_items([{"k": "d", "y": 1}, {"k": "b", "y": 2}, {"k": "b", "y": 3}])
print(ordered(texts.join(more, "inner", 2, on=("k",))))
print(ordered(texts.join(more, "full_outer", 2, on=("k",))))
pairs = [{"a": i % 2, "b": i % 3, "n": i} for i in range(6)]
twice = ray.data.from_items(pairs).join(
    ray.data.from_items([{"a": 1, "b": b, "m": b} for b in range(3)]), "inner", 3, on=("a", "b")
)
print(ordered(twice), twice.count())
three = doubles.join(squares, "inner", 2).join(
    ray.data.range(10).map(lambda r: {"id": r["id"], "cube": r["id"] ** 3}), "inner", 2
)
print(ordered(three.map(lambda r: {"sum": r["double"] + r["square"] + r["cube"]})))
print(doubles.join(squares, "inner", 4).materialize().count())
