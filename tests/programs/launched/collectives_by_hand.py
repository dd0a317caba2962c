"""Collectives of a script's own, timed as benchmarks time them."""

import time

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator

deepspeed.init_distributed()
accelerator = get_accelerator()
assert accelerator.available_memory() <= accelerator.total_memory(0)
assert torch.bfloat16 in accelerator.supported_dtypes()
ranks, size = dist.get_all_ranks_from_group(dist.get_world_group()), 2**22
x = torch.empty(size, device=accelerator.current_device_name())
whole = torch.empty(size * len(ranks), device=accelerator.device_name())
assert accelerator.on_accelerator(x)
pair = dist.new_group([0, 1])


def timed(call, *args, **kwargs):
    accelerator.synchronize(0)
    began = time.perf_counter()
    call(*args, **kwargs)
    accelerator.synchronize(0)
    return time.perf_counter() - began


taken = {
    "all_reduce": timed(dist.all_reduce, x, op=dist.ReduceOp.SUM, log_name="x"),
    "all_gather": timed(dist.all_gather_into_tensor, whole, x),
    "reduce_scatter": timed(dist.reduce_scatter_tensor, x, whole),
    "all_to_all": timed(dist.all_to_all_single, whole, whole.clone()),
    "broadcast": timed(dist.broadcast, x, 0),
}
if dist.get_rank() < 2:
    taken["of a pair"] = timed(dist.all_reduce, x, group=pair)
if dist.get_rank() == 0:
    print(taken)
