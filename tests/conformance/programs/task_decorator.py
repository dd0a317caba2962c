"""Ways of making something remote, and things that cannot be."""
# cluster: 2 CPU

import ray

ray.init()


def plain(x):
    """Doubles."""
    return 2 * x


remote_plain = ray.remote(plain)
print(type(remote_plain).__name__, hasattr(remote_plain, "__name__"))
print(ray.get(remote_plain.remote(4)), plain(4))


@ray.remote
class Thing:
    def value(self):
        return 1


print(type(Thing).__name__)
for wrong in (
    lambda: ray.remote(3),
    lambda: ray.remote(num_cpus=1, bad=2)(plain),
    lambda: Thing(),
    lambda: ray.remote(num_returns=2)(Thing),
    lambda: ray.remote(1, 2),
    lambda: Thing.remote().value(),
    lambda: Thing.remote().missing,
):
    try:
        wrong()
        print("accepted")
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0][:70])
