"""Collectives of real DeepSpeed steps of a mixture of experts on CPU ranks, and what ranks hold.

``torchrun --nproc-per-node 4 -m tests.real.moe_steps cases.json found.json``.
A case is ``{"name", "config", "moe"}``: DeepSpeed's JSON, and what ``deepspeed.moe.layer.MoE`` is
given; ``first``: what that of the other block is. Several sizes of groups need PYTHONHASHSEED=0.
What is found, for the third step of each case: every collective of rank 0 in order as
``[phase, operation, bytes of the whole buffer, ranks, times in a row]``; of every rank, elements of
its parameters and of the optimizer's states; files of a checkpoint with bytes of their tensors.
``model`` and ``trained`` are also what an emulated worker runs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

HIDDEN, VOCAB, SEQ, BATCH, STEPS = 64, 128, 16, 4, 3


def model(moe: dict[str, Any], first: dict[str, Any] | None = None) -> Any:
    """A small GPT whose second block is a mixture, or both are; what it returns is the loss."""
    from deepspeed.moe.layer import MoE

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x: Any) -> Any:
            return self.out(functional.gelu(self.fc(x)))

    class Block(nn.Module):
        def __init__(self, mlp: Any) -> None:
            super().__init__()
            self.ln1, self.qkv = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 3 * HIDDEN)
            self.proj, self.ln2 = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
            self.mlp = mlp

        def forward(self, x: Any) -> Any:
            batch, seq, hidden = x.shape
            q, k, v = self.qkv(self.ln1(x)).view(batch, seq, 3, 4, -1).permute(2, 0, 3, 1, 4)
            h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(h.transpose(1, 2).reshape(batch, seq, hidden))
            out = self.mlp(self.ln2(x))
            if isinstance(out, tuple):
                return x + out[0], out[1]
            return x + out, 0.0

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(VOCAB, HIDDEN)
            other = MoE(HIDDEN, Mlp(), **first) if first else Mlp()
            self.h = nn.ModuleList([Block(other), Block(MoE(HIDDEN, Mlp(), **moe))])
            self.ln_f, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

        def forward(self, ids: Any) -> Any:
            x, aux = self.emb(ids), 0.0
            for block in self.h:
                x, more = block(x)
                aux = aux + more
            logits = self.head(self.ln_f(x)).float()
            return functional.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 0.01 * aux

    return Gpt()


def groups_of(net: Any, weight_decay: float = 0.01) -> Any:
    """As DeepSpeed's own CIFAR example makes them."""
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    given = {"params": list(net.parameters()), "name": "parameters", "weight_decay": weight_decay}
    return split_params_into_different_moe_groups_for_optimizer(given)


def fused(groups: Any) -> Any:
    """DeepSpeed's own Adam; on CPU ranks torch's in its clothes, which needs no compiler."""
    from deepspeed.ops.adam import FusedAdam

    if not torch.cuda.is_available():

        class Plain(FusedAdam):  # type: ignore[misc, no-any-unimported]
            step, _init_group = torch.optim.Adam.step, torch.optim.Adam._init_group

            def __init__(self) -> None:
                like = torch.optim.AdamW([torch.zeros(1)], lr=1e-4)
                torch.optim.Optimizer.__init__(self, groups, like.defaults)

        return Plain()
    return FusedAdam(groups, lr=1e-4)


def trained(case: dict[str, Any], device: str, before: Any = None) -> tuple[Any, Any]:
    """Engine and model after some steps; ``before`` is called with each phase's name."""
    import deepspeed

    before = before or (lambda phase: None)
    net = model(case["moe"], case.get("first"))
    before("init")
    given: dict[str, Any] = {"model": net, "config": case["config"]}
    if case.get("fused"):
        engine, *_ = deepspeed.initialize(optimizer=fused(groups_of(net)), **given)
    else:
        engine, *_ = deepspeed.initialize(model_parameters=groups_of(net), **given)
    ids = torch.randint(VOCAB, (BATCH, SEQ), device=device)
    for _ in range(STEPS):
        before("begin")
        for _ in range(engine.gradient_accumulation_steps()):
            before("forward")
            loss = engine(ids)
            before("backward")
            engine.backward(loss)
            before("step")
            engine.step()
    return engine, net


def _states(engine: Any) -> Iterator[torch.Tensor]:
    """What the optimizer holds per element: master copies and moments."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for group in inner.param_groups:
        for p in group["params"]:
            yield p
            yield from (v for v in inner.state[p].values() if torch.is_tensor(v) and v.dim())


def _held(engine: Any, net: Any) -> dict[str, Any]:
    return {
        "parameters": {
            name: sum(p.numel() for p in net.parameters() if getattr(p, "allreduce", True) == dense)
            for name, dense in (("dense", True), ("experts", False))
        },
        "optimizer": sum(t.nbytes for t in _states(engine)),
    }


def _bytes(tree: Any, seen: dict[int, int]) -> int:
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def _files(engine: Any) -> dict[str, int]:
    """Of a checkpoint, with bytes of their tensors' storages."""
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    engine.save_checkpoint(where[0], tag="t")
    dist.barrier()
    found = {}
    if dist.get_rank() == 0:
        for path in sorted(Path(str(where[0]), "t").iterdir()):
            found[path.name] = _bytes(torch.load(path, weights_only=False), {})
    return found


def main() -> None:
    """Run the cases of the first argument's file; rank 0 writes the second's."""
    from tests.real import deepspeed_steps, zeropp_steps

    def before(phase: str) -> None:
        if phase == "begin":
            zeropp_steps.HEARD.clear()
        deepspeed_steps.PHASE = phase

    zeropp_steps.listen()
    source, target = (Path(argument) for argument in sys.argv[1:3])
    import deepspeed
    from deepspeed.utils import groups

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as in deepspeed_steps
    found: dict[str, Any] = {}
    for case in json.loads(source.read_text()):
        for known in (
            groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_PARALLEL_GROUP_RANKS,
            groups._EXPERT_DATA_PARALLEL_GROUP, groups._EXPERT_DATA_PARALLEL_GROUP_RANKS,
        ):  # fmt: skip
            known.clear()  # one size of group to a process
        torch.manual_seed(0)
        engine, net = trained(case, "cpu", before)
        calls = [[*call, len(list(run))] for call, run in groupby(zeropp_steps.HEARD)]
        held: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(held, _held(engine, net))
        found[case["name"]] = {"collectives": calls, "held": held, "files": _files(engine)}
        engine.destroy()
    if int(os.environ["RANK"]) == 0:
        target.write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # at once: DeepSpeed's threads sometimes abort an interpreter that ends in order


if __name__ == "__main__":
    main()
