"""A step of a small network, fed by what the script's own process makes of tensors of the CPU."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

WHAT = set(sys.argv[1:])
SAMPLES, STEPS = 2048, 8


class Described(Dataset):
    """Samples as a tokenizer or numpy makes them."""

    def __len__(self):
        return SAMPLES * STEPS

    def __getitem__(self, index):
        if "numpy" in WHAT:
            if "charged" in WHAT:
                import raysim

                raysim.charge(seconds=10e-6)
            return np.array([1.0] * 16, dtype=np.float32)
        return [index] * 64


def padded(samples):
    if "numpy" in WHAT:
        return torch.from_numpy(np.stack(samples))
    return torch.tensor(samples)


def cut(tokens):
    """As a hand-written ``get_batch`` cuts sequences of 16 out of a file of token ids."""
    starts = torch.randint(len(tokens) - 16, (SAMPLES,))
    return torch.stack([torch.from_numpy(tokens[i : i + 16].astype(np.int64)) for i in starts])


def batches():
    if "cut" in WHAT:
        tokens = np.arange(4096, dtype=np.uint16)
        yield from (cut(tokens).cuda().float() for _ in range(STEPS))
    if "tabular" in WHAT:
        rows = SAMPLES * STEPS
        data = TensorDataset(torch.randn(rows, 16), torch.rand(rows), torch.randint(0, 9, (rows,)))
        workers = 4 if "workers" in WHAT else 0
        loader = DataLoader(data, SAMPLES, shuffle=True, pin_memory=True, num_workers=workers)
        yield from (x.cuda() for x, *_ in loader)
    elif WHAT & {"listed", "numpy"}:
        for x in DataLoader(Described(), SAMPLES, collate_fn=padded):
            yield x.cuda().float()[:, :16]
    for _ in range(STEPS):
        device = "cuda" if "there" in WHAT else "cpu"
        many = torch.randn(2**22 if WHAT & {"drawn", "there"} else SAMPLES, 16, device=device)
        if "pinned" in WHAT:
            many = many.pin_memory()
        yield many.cuda()[:SAMPLES]


net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _, x in zip(range(STEPS), batches(), strict=False):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "asks" in WHAT:
        loss.item()
