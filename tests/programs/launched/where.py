"""What a script reads of where its tensors are."""

import torch
from torch import nn


def say(*what):
    print(*(str(each).replace("cuda:0", "gpu") for each in what))


model = nn.Linear(8, 8)
x = torch.randn(2, 8)
say(model.weight.device, model.weight.is_cuda, x.device)
model, x = model.cuda(), x.to("cuda")
y = model(x)
say(model.weight.device, x.device.type, x.is_cuda, y.device, y.sum().device, y.cpu().device)
say(torch.zeros(3, device=y.device).device, torch.arange(3, device=x.device).device)
say(x.device == y.device, x.device == torch.device("cpu"))
draws = torch.Generator(device=x.device).manual_seed(1)
say(draws.device, isinstance(draws, torch.Generator))
say(isinstance(torch.default_generator, torch.Generator))
say(torch.randn(2, generator=draws, device=x.device).device)
two = nn.Sequential(model, nn.Linear(8, 8).to("cuda:1"))
say(two[1].weight.device)
say(torch.cuda.memory_allocated(5), torch.cuda.mem_get_info(5)[0] == torch.cuda.mem_get_info(5)[1])
heads, norm = x.view(1, 1, 2, 8), nn.BatchNorm1d(8).cuda()
for wrong in (
    lambda: nn.functional.scaled_dot_product_attention(heads, heads.cpu(), heads.cpu()),
    lambda: norm(x.cpu()),
    lambda: two(x),
):
    try:
        wrong()
    except RuntimeError as error:
        say(error)
