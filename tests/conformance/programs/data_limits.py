"""Resources that an execution may use: how many of its tasks run at once."""
# cluster: 4 CPU

import time

import ray
from ray.data import DataContext, ExecutionOptions, ExecutionResources


def timed(batch):
    began = time.time()
    time.sleep(0.4)
    return {"began": [began], "ended": [time.time()]}


def most_at_once():
    rows = ray.data.range(8, override_num_blocks=8).map_batches(timed).take_all()
    return max(sum(r["began"] <= s["began"] < r["ended"] for r in rows) for s in rows)


ray.init()
context = DataContext.get_current()
options = context.execution_options
print(options.resource_limits.cpu, options.exclude_resources.cpu, options.preserve_order)
options.resource_limits = ExecutionResources(cpu=1)
print(options.resource_limits.cpu, options.resource_limits.object_store_memory)
print(most_at_once())
context.execution_options = ExecutionOptions(exclude_resources=ExecutionResources(cpu=3))
print(most_at_once())
