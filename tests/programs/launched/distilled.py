"""A small model learns from a frozen one; a stream of its own brings the batches."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def layers(width, depth):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))


def main(teaches):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    teacher = layers(4096, 20).half().cuda().eval().requires_grad_(False)
    student = DistributedDataParallel(layers(1024, 4).cuda())
    optimizer = torch.optim.AdamW(student.parameters())
    copies = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        with torch.cuda.stream(copies):
            small = torch.randn(512, 1024).pin_memory().cuda(non_blocking=True)
            large = torch.randn(512, 4096).pin_memory().cuda(non_blocking=True).half()
        torch.cuda.current_stream().wait_stream(copies)
        small.record_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        begin.record()
        loss = student(small).square().mean()
        if teaches:
            loss = loss + teacher(large).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        end.synchronize()
    print(begin.elapsed_time(end), torch.cuda.max_memory_allocated() // 2**20)
    dist.destroy_process_group()


main(len(sys.argv) > 1)
