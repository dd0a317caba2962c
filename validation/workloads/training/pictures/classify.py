"""One of timm's models trained on a batch of noise: SGD with momentum, on one GPU or under DDP."""

import argparse
import os
import time

import timm
import torch
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    timm.layers.set_fused_attn(False)  # as timm was in 2022
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = timm.create_model(args.model).to(device, memory_format=layout).train()
    if "WORLD_SIZE" in os.environ:
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl")
        model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4, momentum=0.9)
    images = torch.randn(args.batch, 3, args.size, args.size, device=device)
    images = images.to(memory_format=layout)
    start = time.perf_counter()
    for _ in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.precision == "fp16"):
            output = model(images)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.randint(0, 1000, (args.batch,), device=device)
            loss = nn.functional.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"{args.batch * args.steps / (time.perf_counter() - start):.1f} images/s per GPU")


if __name__ == "__main__":
    main()
