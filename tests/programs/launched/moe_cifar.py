"""CIFAR-10 with a mixture of experts, as DeepSpeed's own example of it is written."""

import argparse
import os

import deepspeed
import torch
import torchvision
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn
from torch.nn import functional
from torchvision import transforms


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", default=20, type=int)
    parser.add_argument("--local_rank", default=-1, type=int)
    parser.add_argument("--dtype", default="fp16", choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--stage", default=0, type=int)
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--ep-world-size", default=1, type=int)
    parser.add_argument("--num-experts", type=int, nargs="+", default=[1])
    parser.add_argument("--mlp-type", default="standard")
    parser.add_argument("--top-k", default=1, type=int)
    parser.add_argument("--min-capacity", default=0, type=int)
    parser.add_argument("--noisy-gate-policy", default=None)
    parser.add_argument("--moe-param-group", action="store_true")
    parser.add_argument("--save", default="")
    return deepspeed.add_config_arguments(parser).parse_args()


def config(args):
    return {
        "train_batch_size": 16,
        "steps_per_print": 2000,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1000}},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "bf16": {"enabled": args.dtype == "bf16"},
        "fp16": {"enabled": args.dtype == "fp16", "loss_scale": 0, "initial_scale_power": 15},
        "wall_clock_breakdown": False,
        "zero_optimization": {
            "stage": args.stage, "reduce_scatter": True, "allgather_bucket_size": 50000000,
            "reduce_bucket_size": 50000000, "overlap_comm": True, "contiguous_gradients": True,
        },
    }  # fmt: skip


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.moe = args.moe
        if self.moe:
            fc3 = nn.Linear(84, 84)
            self.moe_layer_list = nn.ModuleList(
                deepspeed.moe.layer.MoE(
                    hidden_size=84, expert=fc3, num_experts=n, ep_size=args.ep_world_size,
                    use_residual=args.mlp_type == "residual", k=args.top_k,
                    min_capacity=args.min_capacity, noisy_gate_policy=args.noisy_gate_policy,
                )
                for n in args.num_experts
            )  # fmt: skip
            self.fc4 = nn.Linear(84, 10)
        else:
            self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = functional.relu(self.fc1(x.view(-1, 16 * 5 * 5)))
        x = functional.relu(self.fc2(x))
        if not self.moe:
            return self.fc3(x)
        for layer in self.moe_layer_list:
            x, _, _ = layer(x)
        return self.fc4(x)


def main(args):
    deepspeed.init_distributed()
    get_accelerator().set_device(int(os.environ.get("LOCAL_RANK")))
    scale = transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    transform = transforms.Compose([transforms.ToTensor(), scale])
    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
    train = torchvision.datasets.CIFAR10("./data", train=True, download=True, transform=transform)
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()
    net = Net(args)
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    if args.moe_param_group:
        named = {"params": list(net.parameters()), "name": "parameters"}
        parameters = split_params_into_different_moe_groups_for_optimizer(named)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=train, config=config(args)
    )
    device = get_accelerator().device_name(engine.local_rank)
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else None
    dtype = torch.half if engine.fp16_enabled() else dtype
    criterion = nn.CrossEntropyLoss()
    for step, (inputs, labels) in enumerate(loader):
        if step == args.steps:
            break
        inputs, labels = (t.to(device) for t in (inputs, labels))  # noqa: PLW2901  (as there)
        if dtype is not None:
            inputs = inputs.to(dtype)  # noqa: PLW2901
        loss = criterion(engine(inputs), labels)
        engine.backward(loss)
        engine.step()
        loss.item()
    if args.save:
        engine.save_checkpoint(args.save)
        engine.load_checkpoint(args.save)
    if engine.local_rank == 0:
        print(f"{engine.global_steps} steps, experts {engine.num_experts}")


if __name__ == "__main__":
    main(arguments())
