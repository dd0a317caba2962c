"""An exception of a task arrives as itself and as RayTaskError."""
# cluster: 2 CPU

import ray
from ray.exceptions import RayError, RayTaskError

ray.init()


class Custom(Exception):
    def __init__(self, code, *, hint="none"):
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


class Final(BaseException):
    pass


@ray.remote
def raises(kind):
    if kind == "zero":
        return 1 / 0
    if kind == "custom":
        raise Custom(7, hint="help")
    if kind == "base":
        raise Final("base")
    if kind == "chained":
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    raise StopIteration("stop")


for kind in ("zero", "custom", "chained", "stop", "base"):
    try:
        ray.get(raises.remote(kind))
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else None
        print(kind, type(error).__name__, type(cause).__name__, cause)
try:
    ray.get(raises.remote("custom"))
except Custom as error:
    print(isinstance(error, RayTaskError), error.cause.code, hasattr(error, "code"))
    print(error.args == error.cause.args, [c.__name__ for c in type(error).__mro__])
try:
    ray.get(raises.remote("zero"))
except ZeroDivisionError as error:
    lines = str(error).splitlines()
    print(lines[-1], "ray::raises()" in lines[0], "in raises" in str(error))
    try:
        print(error.function_name)
    except AttributeError as hidden:
        print(hidden)
