"""A model that is never trained answers batch after batch: seconds of one."""

import sys
import time

import torch
from torch import nn


def main(kind, under):
    if kind == "norms":
        model, given = nn.BatchNorm2d(64), torch.randn(256, 64, 112, 112, device="cuda")
    elif kind == "large":
        model, given = nn.Linear(2**18, 2**18, bias=False), None
    else:
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8)))
        given = torch.randn(8192, 4096, device="cuda", dtype=torch.float16)
    model = model.cuda().eval()
    model = model.half() if kind == "products" else model
    contexts = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    with contexts.get(under, torch.enable_grad)():
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model(given)
            torch.cuda.synchronize()
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    main(*sys.argv[1:])
