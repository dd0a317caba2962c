"""What real torch exchanges in a step of ``blocks_tp.py``: rank 0 of so many, on the CPU.

A program of its own: ``python tensor_parallel_steps.py WORLD TP`` prints JSON, with a folder behind
it that of transformers' model of the ``config.json`` there. The group is torch's own fake one,
which knows ranks and moves nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).parents[1] / "programs" / "launched"))
import blocks_tp
from exchanging import Exchanged


def main(world: int, tp: int) -> None:
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    model = blocks_tp.parallelized(blocks_tp.Net(), mesh["tp"])
    if world > tp:
        for block in model.layers:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    tokens = torch.randint(blocks_tp.VOCABULARY, (2, 64))
    for _ in range(2):  # the first gathers what is lazily made
        with Exchanged() as exchanged:
            blocks_tp.step(model, tokens)
    say(exchanged, model, kept=0 if world > tp else kept_bytes(model, tokens))


def transformers_s(world: int, tp: int, folder: str) -> None:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    kind = type(model)
    config, _, meshes = kind.prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=tp))
    model = kind.maybe_distribute_model(model, config, meshes)
    tokens = torch.randint(model.config.vocab_size, (2, 64))
    with Exchanged() as exchanged:
        model(input_ids=tokens, labels=tokens).loss.backward()
    say(exchanged, model)


def own(tensor: Any) -> Any:
    """This rank's part, once it is there."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return getattr(tensor, "elem", tensor)


def kept_bytes(model: Any, tokens: torch.Tensor) -> int:
    """Of storages that backward needs, parameters aside."""
    weights = {own(p).untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = own(tensor).untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, blocks_tp.loss_parallel():
        blocks_tp.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    return sum(s.nbytes() for place, s in kept.items() if place not in weights)


def say(exchanged: Exchanged, model: Any, kept: int = 0) -> None:
    held = sum(own(p).numel() for p in model.parameters())
    group = {"c10d": "dp", "_c10d_functional": "tp"}
    found = [[group[library], *key, n] for (library, *key), n in exchanged.found.items()]
    print(json.dumps({"held": held, "kept": kept, "found": found}))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        transformers_s(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
