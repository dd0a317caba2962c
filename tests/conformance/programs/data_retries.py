"""Ray Data: functions of maps that fail: tried again, left out, or said how often."""
# cluster: 2 CPU

import tempfile
import time
from pathlib import Path

import ray

ray.init()
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
seen = Path(tempfile.mkdtemp(), "seen")


def flaky(row):
    with seen.open("a") as file:
        file.write("x")
    if seen.stat().st_size < 3:
        raise RuntimeError("flaky network")
    return row


def hard(row):
    raise RuntimeError("no way")


def fails(what):
    try:
        print(what.take_all())
    except Exception as error:
        print(type(error).__name__)
        print("\n".join(line for line in str(error).splitlines() if "attempts" in line))


fails(ray.data.range(1).map(hard))
context.retried_map_errors, context.max_map_retries = ["flaky", "Time.*out"], 3
began = time.time()
print(ray.data.range(1).map(flaky).take_all(), seen.stat().st_size, time.time() - began < 20)
fails(ray.data.range(1).map(hard))
context.retried_map_errors = False


def odd_fail(batch):
    if batch["id"][0] % 4:
        raise ValueError("odd")
    return batch


for most in (2, -1, 1):
    context.max_errored_blocks = most
    many = ray.data.range(10, override_num_blocks=5).map_batches(odd_fail, batch_size=None)
    try:
        print(most, many.count())
    except Exception as error:
        print(most, type(error).__name__)
