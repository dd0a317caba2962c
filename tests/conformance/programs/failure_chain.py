"""A failed argument fails every task that needs it, with the first error."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def fail():
    raise ValueError("root")


@ray.remote
def use(x):
    return x


@ray.remote
def nested():
    return ray.get(fail.remote())


@ray.remote
def catches():
    try:
        ray.get(fail.remote())
    except ValueError as error:
        return type(error).__name__


@ray.remote(num_cpus=0)
class Actor:
    def use(self, x):
        return x

    def nested(self):
        return ray.get(nested.remote())


def outcome(ref):
    try:
        return ray.get(ref)
    except Exception as error:
        cause = error.cause
        return type(error).__name__, type(cause).__name__, str(cause).splitlines()[-1]


failed = fail.remote()
print(outcome(use.remote(failed)))
print(outcome(use.remote(use.remote(failed))))
print(outcome(nested.remote()))
print(outcome(catches.remote()))
actor = Actor.remote()
print(outcome(actor.use.remote(failed)), outcome(actor.use.remote(1)))
print(outcome(actor.nested.remote()))
print(outcome(use.remote([failed])) == [failed])
ready, _ = ray.wait([failed])
print(len(ready))
try:
    ray.get([use.remote(1), failed, use.remote(2)])
except ValueError:
    print("one fails all")
