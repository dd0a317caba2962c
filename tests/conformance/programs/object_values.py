"""put and get copy: what comes back is equal, never the same."""
# cluster: 2 CPU

import collections
import datetime
import decimal

import ray

ray.init()
Point = collections.namedtuple("Point", "x y")


class Node:
    def __init__(self, name):
        self.name = name
        self.next = None

    def __eq__(self, other):
        return self.name == other.name

    __hash__ = None


values = [
    None, True, 2**100, 1.5, 1j, "text", b"bytes", bytearray(b"b"), (1, (2,)), [1, [2]], {3, 4},
    frozenset({1}), {"a": {"b": 1}}, Point(1, 2), datetime.date(2020, 1, 2), decimal.Decimal("1.1"),
    range(3), slice(1, 2), Ellipsis, int, len, ValueError("v").args, Node("n"),
]  # fmt: skip
back = ray.get([ray.put(value) for value in values])
print(
    [
        (a, type(b).__name__)
        for a, b in zip(values, back, strict=True)
        if a != b or type(a) is not type(b)
    ]
)

ref = ray.put([1, 2])
first, second = ray.get(ref), ray.get(ref)
first.append(3)
print(first, second, ray.get(ref))
mine = {"k": []}
ref = ray.put(mine)
mine["k"].append(1)
print(ray.get(ref))
ring = Node("ring")
ring.next = ring
back = ray.get(ray.put(ring))
print(back.next is back, back is ring)
shared = []
pair = ray.get(ray.put((shared, shared)))
print(pair[0] is pair[1])


@ray.remote
def change(items):
    items.append("changed")
    return items


ref = ray.put(["kept"])
print(ray.get(change.remote(ref)), ray.get(ref))
for wrong in (
    lambda: ray.put(ref),
    lambda: ray.get(3),
    lambda: ray.get([ref, 3]),
    lambda: ray.get((ref,)),
):
    try:
        wrong()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, str(error).split(". ")[0][:70])
print(ray.get([]))
