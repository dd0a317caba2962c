"""Generators with a fixed number of returns: what was yielded stays, an error is the rest."""
# cluster: 2 CPU

import ray


@ray.remote
def count(up_to, error=None):
    yield from range(up_to)
    if error is not None:
        raise error


def told(refs):
    for ref in refs:
        try:
            print(ray.get(ref))
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[-1])


ray.init()
for returns, yields, error in (
    (3, 3, None),
    (3, 2, None),
    (2, 4, None),
    (2, 0, None),
    (4, 2, ValueError("after two")),
    (2, 2, ValueError("too late to matter")),
    (2, 0, ValueError("at once")),
):
    print("returns", returns, "yields", yields, error)
    told(count.options(num_returns=returns, max_retries=0).remote(yields, error))
