"""How many GPUs a process sees, by what its environment names of them."""

import os

import torch

print(torch.cuda.device_count(), end=" ")
for named in ("0", "2,1", "1,9,2", "-1"):
    os.environ["CUDA_VISIBLE_DEVICES"] = named
    print(torch.cuda.device_count(), end=" ")
print()
