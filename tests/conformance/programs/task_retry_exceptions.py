"""retry_exceptions: which exceptions of a task are worth another try."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        return self.n


@ray.remote
def fails(counter, times, kind):
    attempt = ray.get(counter.up.remote())
    if attempt <= times:
        raise kind(f"attempt {attempt}")
    return attempt


def tried(label, times, kind, **options):
    counter = Counter.remote()
    try:
        outcome = ray.get(fails.options(**options).remote(counter, times, kind))
    except Exception as error:
        outcome = f"{type(error).__name__}: {error.cause}"
    print(label, "->", outcome, "after", ray.get(counter.up.remote()) - 1)


tried("default", 1, ValueError)
tried("all", 2, ValueError, retry_exceptions=True, max_retries=3)
tried("too few", 5, ValueError, retry_exceptions=True, max_retries=2)
tried("listed", 1, KeyError, retry_exceptions=[KeyError], max_retries=1)
tried("parent listed", 1, KeyError, retry_exceptions=[LookupError], max_retries=1)
tried("not listed", 1, ValueError, retry_exceptions=[KeyError], max_retries=1)
tried("no retries", 1, ValueError, retry_exceptions=True, max_retries=0)
try:
    fails.options(retry_exceptions=3).remote(None, 0, ValueError)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
