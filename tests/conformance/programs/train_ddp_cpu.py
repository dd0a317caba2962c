"""Two CPU workers train by DDP: what torch computes, averaged over gloo."""
# cluster: 4 CPU

import tempfile

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def loop():
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)]
    model = prepare_model(torch.nn.Sequential(*layers))
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(48, 4, generator=generator)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(3):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.SUM)
        losses.append(round(mean.item() / 2, 3))
    weights = round(sum(p.sum().item() for p in model.parameters()), 3)
    with model.no_sync():
        model(torch.ones(1, 4) * (rank + 1)).sum().backward()
    first = torch.tensor([float(rank + 7)])
    torch.distributed.broadcast(first, 0)
    return losses, weights, type(model).__name__, len(loader), first.item()


ray.init()
with tempfile.TemporaryDirectory() as storage:
    result = TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=storage),
    ).fit()
print(result.return_value)
