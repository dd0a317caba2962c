"""The blocks of ``blocks_tp`` over replicas, shards and tensor-parallel ranks, as for pretraining.

Built without memory, checkpointed and, if asked, compiled block by block, in 16 bits, with the
norm of gradients over all meshes and a distributed checkpoint.
"""

import sys

import blocks_tp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


def built(mesh, *, compiled):
    with torch.device("meta"):
        model = blocks_tp.Net()
    blocks_tp.parallelized(model, mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    data = mesh["replicate", "shard"]
    for name, block in list(model.layers.named_children()):
        wrapped = checkpoint_wrapper(block, preserve_rng_state=False)
        wrapped = torch.compile(wrapped) if compiled else wrapped
        model.layers.register_module(name, wrapped)
        fully_shard(wrapped, mesh=data, mp_policy=policy)
    fully_shard(model, mesh=data, mp_policy=policy)
    model.to_empty(device="cuda")
    for p in model.parameters():
        nn.init.trunc_normal_(p, std=0.02)
    return model.train()


def main(folder, *, compiled):
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = built(mesh, compiled=compiled)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = blocks_tp.step(model, torch.randint(blocks_tp.VOCABULARY, (2, 64), device="cuda"))
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        optimizer.step()
    dist.all_reduce(loss.full_tensor(), group=mesh.get_group("shard"))
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], compiled="compiled" in sys.argv)
