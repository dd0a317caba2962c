"""What a script counts on its device, and what it does with masks: the same on real ranks."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

GPUS = torch.cuda.is_available()


def say(*words):
    """A line in one piece, which the other rank's do not cut."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


class Sentences(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.arange(index, index + 6) % 10


def masked(samples):
    """Every third token is hidden, and is what has to be found; the draw is a sure one."""
    ids = torch.stack(samples)
    labels = ids.clone()
    chance = torch.full(labels.shape, 0.0)
    chance[:, ::3] = 1.0
    hidden = torch.bernoulli(chance).bool()
    labels[~hidden] = -100
    ids[hidden] = 10
    return {"ids": ids, "labels": labels}


def main():
    dist.init_process_group("nccl" if GPUS else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if GPUS else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 32), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Sentences()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=3, sampler=sampler, collate_fn=masked)
    seen, by_class = torch.tensor(0, device=device), torch.zeros(10, dtype=torch.long).to(device)
    sums = torch.zeros(2, device=device)
    for batch in loader:
        ids, labels = batch["ids"].to(device), batch["labels"].to(device)
        wanted = labels != -100
        logits = model(ids)[wanted]
        nn.functional.cross_entropy(logits, labels[wanted]).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += wanted.sum()
        for label in labels[wanted]:
            by_class[label] += 1
        sums[0] += 0.5 * len(ids)
        sums[1] += len(ids)
        say(rank, tuple(logits.shape), labels[0].tolist(), wanted.nonzero().shape[0])
    dist.all_reduce(seen)
    dist.all_reduce(sums)
    largest = by_class.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shares = [torch.zeros_like(by_class) for _ in range(ranks)]
    dist.all_gather(shares, by_class)
    together = torch.empty(2 * ranks, dtype=torch.long, device=device)
    dist.all_gather_into_tensor(together, torch.tensor([rank, 7], device=device))
    chosen = torch.tensor([3 + rank], device=device)
    dist.broadcast(chosen, src=1)
    mean = (sums[0] / sums[1]).item()
    say(rank, seen.item(), 100 * 1 / seen.item(), largest.item(), mean, chosen.item())
    say(rank, [share.tolist() for share in shares], together.tolist())
    dist.destroy_process_group()


main()
