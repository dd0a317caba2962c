"""A residual network under DeepSpeed: arguments, a dataset and a JSON, as its tutorial has them."""

import argparse

import deepspeed
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--save", default="")
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed()
    net = Net(args.width, depth=4)
    x = torch.randn(args.samples, args.width)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(),
        training_data=torch.utils.data.TensorDataset(x, x),
    )  # fmt: skip
    for inputs, targets in loader:
        outputs = engine(inputs.to(engine.device).half())
        loss = nn.functional.mse_loss(outputs, targets.to(engine.device).half())
        engine.backward(loss)
        engine.step()
    if args.save:
        engine.save_checkpoint(args.save)
    if torch.distributed.get_rank() == 0:
        print(f"{engine.global_steps} steps, {args.local_rank=}, {args.deepspeed=}")


if __name__ == "__main__":
    main()
