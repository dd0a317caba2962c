"""Unmodified training loops: what 10,000 steps cost this machine, printed; never a gate.

Likewise pictures that stand for others: 8 ranks that share their batches, beside one.

    pytest tests/benchmarks/test_training_script_speed.py -m benchmark --benchmark-enable -s

A loop over a tensor that is there, and one with a data loader, a loss and an accuracy of its own.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.benchmark
torch = pytest.importorskip("torch")

from tests.real.training_script_parts import Net, fit  # noqa: E402

STEPS = 10_000


def bare(config: dict[str, Any]) -> None:
    import ray.train.torch

    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 1024, device="cuda")
    for _ in range(STEPS):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def loaded(config: dict[str, Any]) -> None:
    import ray.train.torch

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return STEPS * 64 * config["ranks"]

        def __getitem__(self, i: int) -> Any:
            return torch.randn(1024), torch.randint(0, 1024, ())

    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(Data(), batch_size=64, num_workers=2)
    for x, y in ray.train.torch.prepare_data_loader(loader):
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item(), (out.argmax(dim=1) == y).sum().item()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("loop", [bare, loaded])
def test_ten_thousand_steps(loop: Any, workers: int) -> None:
    started = time.process_time()
    _, report = fit(loop, workers=workers, ranks=workers)
    took_s = time.process_time() - started
    each_us = took_s / (STEPS * workers) * 1e6
    print(f"\n{loop.__name__}, {workers} ranks: {took_s:.1f} s of CPU, {each_us:.0f} us a step")
    assert report.tables[0].rows[0][1] == STEPS


def pictures(config: dict[str, Any]) -> None:
    import ray.train.torch
    from torchvision import datasets, transforms

    change = transforms.Compose([transforms.Resize(256), transforms.ToTensor()])
    data = datasets.ImageFolder("nowhere/imagenet", change)
    model = ray.train.torch.prepare_model(torch.nn.Conv2d(3, 8, 3))
    optimizer = torch.optim.SGD(model.parameters())
    loader = torch.utils.data.DataLoader(data, batch_size=128, num_workers=2)
    for step, (x, _) in enumerate(ray.train.torch.prepare_data_loader(loader)):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20:
            return


@pytest.mark.timeout(600)
def test_ranks_share_pictures() -> None:
    def took_s(workers: int) -> float:
        started = time.process_time()
        fit(pictures, workers=workers)
        return time.process_time() - started

    took_s(1)  # imports
    one_s, eight_s = took_s(1), took_s(8)
    print(f"\n8 ranks {eight_s:.1f} s of CPU, {eight_s / one_s:.2f} x one rank")
