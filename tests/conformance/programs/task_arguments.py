"""How values and references reach a task."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def show(first, second=2, *rest, key="k", **more):
    return first, second, rest, key, sorted(more)


@ray.remote
def kinds(direct, inside):
    return type(direct).__name__, type(inside[0]).__name__, ray.get(inside[0])


print(ray.get(show.remote(1)))
print(ray.get(show.remote(1, 3, 4, 5, key="x", zeta=1, alpha=2)))
print(ray.get(show.remote(first="a", second=ray.put("b"), key=ray.put("c"))))
ref = ray.put(10)
print(ray.get(kinds.remote(ref, [ref])))
print(ray.get([show.remote(i) for i in range(3)]))
for wrong in (lambda: show.remote(), lambda: kinds.remote(1, 2, 3), lambda: show(1)):
    try:
        wrong()
    except TypeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
