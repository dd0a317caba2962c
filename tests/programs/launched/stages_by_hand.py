"""A pipeline by hand: one module per rank, 1F1B, what stages make sent in batches of messages."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import P2POp, batch_isend_irecv

WIDTH, ROWS, LAYERS = 4096, 2048, 4


def exchange(sent, to, got, source):
    """Either may be None."""
    ops = [] if sent is None else [P2POp(dist.isend, sent.detach().contiguous(), to)]
    if source is not None:
        ops.append(P2POp(dist.irecv, got, source))
    for work in batch_isend_irecv(ops) if ops else []:
        work.wait()
    return got


def main(batches):
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    before = rank - 1 if rank else None
    behind = rank + 1 if rank < world - 1 else None
    stage = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)

    def blank():
        return torch.empty(ROWS, WIDTH, device="cuda", requires_grad=True)

    def backward(x, y, grad):
        if behind is None:
            y.pow(2).mean().backward()
        else:
            torch.autograd.backward(y, grad_tensors=grad)
        return x.grad if before is not None else None

    for _ in range(3):
        dist.barrier()
        torch.cuda.synchronize()
        began, kept, warm = time.perf_counter(), [], min(world - rank - 1, batches)
        for _ in range(warm):
            x = exchange(None, None, blank(), before)
            kept.append((x, stage(x)))
            exchange(kept[-1][1], behind, None, None)
        if batches > warm:
            x = exchange(None, None, blank(), before)
        for i in range(batches - warm):
            y = stage(x)
            kept.append((x, y))
            sent = y if behind is not None else None
            grad = exchange(sent, behind, torch.empty_like(y), behind)
            x_grad = backward(*kept.pop(0), grad)
            last = i == batches - warm - 1
            x = exchange(x_grad, before, None if last else blank(), None if last else before)
        for _ in range(warm):
            grad = exchange(None, None, torch.empty_like(kept[0][1]), behind)
            exchange(backward(*kept.pop(0), grad), before, None, None)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        taken = time.perf_counter() - began
    print(rank, taken, torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main(int(sys.argv[1]))
