"""Methods: several returns, static and class methods, inheritance, errors, attributes."""
# cluster: 2 CPU

import ray

ray.init()


class Base:
    kind = "base"

    def __init__(self, x):
        self.x = x

    def describe(self):
        return f"{self.kind} {self.x}"

    @staticmethod
    def twice(x):
        return 2 * x

    @classmethod
    def named(cls):
        return cls.kind


@ray.remote(num_cpus=0)
class Child(Base):
    kind = "child"

    def __init__(self, x):
        super().__init__(x + 1)

    @ray.method(num_returns=2)
    def halves(self):
        return self.x // 2, self.x - self.x // 2

    def set(self, x):
        self.x = x

    def fail(self):
        self.x = 0
        raise RuntimeError("method failed")

    def _private(self):
        return "private"

    def __len__(self):
        return self.x


child = Child.remote(6)
print(ray.get(child.describe.remote()), ray.get(child.twice.remote(4)))
print(ray.get(child.named.remote()), ray.get(child._private.remote()))
print(ray.get(child.halves.remote()))
print(ray.get(child.halves.options(num_returns=1).remote()))
print(ray.get(child.set.remote(10)))
try:
    ray.get(child.fail.remote())
except RuntimeError as error:
    print(type(error).__name__, error.cause)
print(ray.get(child.describe.remote()))
print(ray.get(child.__len__.remote()))
print(ray.get(child.__ray_ready__.remote()))
print(ray.get(child.__ray_call__.remote(lambda self, y: self.x + y, 5)))
for wrong in (lambda: child.nothing.remote(), lambda: child.set(1), lambda: child.set.remote()):
    try:
        wrong()
    except (AttributeError, TypeError) as error:
        print(type(error).__name__, str(error).splitlines()[0])
