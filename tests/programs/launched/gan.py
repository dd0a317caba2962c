"""Two networks that train each other: as DCGAN, CycleGAN, WGAN-GP do, or an encoder and decoder."""

import itertools
import os
import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KIND, BATCH, STEPS = sys.argv[1], 64, 4


def wrapped(net: nn.Module) -> nn.Module:
    """As ``torchrun`` asks for."""
    if "RANK" not in os.environ:
        return net
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")
    return DistributedDataParallel(net)


def generator() -> nn.Module:
    return Generator().cuda()


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(100, 256, 4, 1, 0, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
            nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
            nn.ConvTranspose2d(128, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.main(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 128, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(256, 1, 4, 1, 0, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x).view(-1)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(64, 3, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x)


def images() -> torch.Tensor:
    return torch.randn(BATCH, 3, 16, 16, device="cuda")


def dcgan() -> None:
    net_g, net_d, criterion = wrapped(generator()), wrapped(Critic().cuda()), nn.BCEWithLogitsLoss()
    fixed = torch.randn(BATCH, 100, 1, 1, device="cuda")
    adam_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    adam_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for step in range(STEPS):
        net_d.zero_grad()
        label = torch.full((BATCH,), 1.0, device="cuda")
        err_real = criterion(net_d(images()), label)
        err_real.backward()
        fake = net_g(torch.randn(BATCH, 100, 1, 1, device="cuda"))
        label.fill_(0)
        output = net_d(fake.detach())
        err_fake = criterion(output, label)
        err_fake.backward()
        output.mean().item()
        adam_d.step()
        net_g.zero_grad()
        label.fill_(1)
        criterion(net_d(fake), label).backward()
        adam_g.step()
        print(step, (err_real + err_fake).item())
    with torch.no_grad():
        print(tuple(net_g(fixed).shape))


def cycle() -> None:
    to_b, to_a, judge_a, judge_b = Translator(), Translator(), Critic(), Critic()
    for net in (to_b, to_a, judge_a, judge_b):
        net.cuda()
    judges = [judge_a, judge_b]
    adam_g = torch.optim.Adam(itertools.chain(to_b.parameters(), to_a.parameters()))
    adam_d = torch.optim.Adam(itertools.chain(judge_a.parameters(), judge_b.parameters()))
    mse, l1 = nn.MSELoss(), nn.L1Loss()
    ones = torch.ones(BATCH, device="cuda")
    for _ in range(STEPS):
        real_a, real_b = images(), images()
        for p in itertools.chain(*(j.parameters() for j in judges)):
            p.requires_grad = False
        adam_g.zero_grad()
        fake_b, fake_a = to_b(real_a), to_a(real_b)
        loss = mse(judge_b(fake_b), ones) + mse(judge_a(fake_a), ones)
        loss = loss + 10 * (l1(to_a(fake_b), real_a) + l1(to_b(fake_a), real_b))
        loss.backward()
        adam_g.step()
        for p in itertools.chain(*(j.parameters() for j in judges)):
            p.requires_grad = True
        adam_d.zero_grad()
        for judge, real, fake in ((judge_a, real_a, fake_a), (judge_b, real_b, fake_b)):
            right, wrong = judge(real), judge(fake.detach())
            ((mse(right, ones) + mse(wrong, 0 * ones)) * 0.5).backward()
        adam_d.step()


def wasserstein() -> None:
    net_g, net_d = generator(), Critic().cuda()
    adam_d = torch.optim.Adam(net_d.parameters(), betas=(0.0, 0.9))
    adam_g = torch.optim.Adam(net_g.parameters(), betas=(0.0, 0.9))
    for step in range(STEPS * 2):
        real = images()
        adam_d.zero_grad()
        fake = net_g(torch.randn(BATCH, 100, 1, 1, device="cuda"))
        alpha = torch.rand(BATCH, 1, 1, 1, device="cuda")
        between = (alpha * real + (1 - alpha) * fake.detach()).requires_grad_(True)
        judged = net_d(between)
        (slopes,) = torch.autograd.grad(
            outputs=judged, inputs=between, grad_outputs=torch.ones_like(judged),
            create_graph=True, retain_graph=True, only_inputs=True,
        )  # fmt: skip
        penalty = ((slopes.view(BATCH, -1).norm(2, dim=1) - 1) ** 2).mean()
        loss = net_d(fake.detach()).mean() - net_d(real).mean() + 10 * penalty
        loss.backward()
        adam_d.step()
        if step % 2 == 1:
            adam_g.zero_grad()
            (-net_d(net_g(torch.randn(BATCH, 100, 1, 1, device="cuda"))).mean()).backward()
            adam_g.step()


def coder() -> None:
    encoder = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    decoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512)).cuda()
    sgd_1 = torch.optim.SGD(encoder.parameters(), lr=0.1)
    sgd_2 = torch.optim.SGD(decoder.parameters(), lr=0.1)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 512, device="cuda")
        sgd_1.zero_grad()
        sgd_2.zero_grad()
        (decoder(encoder(x)) - x).square().mean().backward()
        sgd_1.step()
        sgd_2.step()


began = time.time()
{"dcgan": dcgan, "cycle": cycle, "wasserstein": wasserstein, "coder": coder}[KIND]()
print(torch.cuda.max_memory_allocated() > 0, time.time() > began)
