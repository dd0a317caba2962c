"""Collectives of real ZeRO++ and Twin-Flow steps on CPU ranks, with the group of each.

``python -m torch.distributed.run --nproc-per-node 4 -m tests.real.zeropp_steps cases.json
found.json``, with ``LOCAL_SIZE`` ranks to a node. What is found is, for the third step of each
case, every collective of rank 0 in order as ``[phase, operation, bytes of the whole buffer, ranks,
times in a row]``. The model is ``deepspeed_steps.Gpt``.

DeepSpeed's quantizer is a CUDA extension. Here stands in for it what makes tensors of the same
shapes (``csrc/quantization/pt_binding.cpp``): who sends how much is DeepSpeed's own Python.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.real import deepspeed_steps

Heard = tuple[str, str, int, int]
HEARD: list[Heard] = []
WHOLE = {
    "all_reduce": "tensor", "all_gather_into_tensor": "output_tensor",
    "reduce_scatter_tensor": "input", "broadcast": "tensor", "all_to_all_single": "input",
}  # fmt: skip
NAMES = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
NAMES["all_to_all_single"] = "all_to_all"


def listen() -> None:
    """Wrap torch.distributed before DeepSpeed takes its functions."""

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)
        signature = inspect.signature(real)
        label = NAMES.get(name, name)

        def heard(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            tensor, ranks = given[WHOLE[name]], dist.get_world_size(given.get("group"))
            size = tensor.numel() * tensor.element_size()
            HEARD.append((deepspeed_steps.PHASE, label, size, ranks))
            return real(*args, **kwargs)

        return heard

    for name in WHOLE:
        setattr(dist, name, wrap(name))


class Quantizer:
    """Tensors of the shapes that DeepSpeed's CUDA quantizer returns; values do not matter here."""

    Symmetric = 0

    def quantize(self, x: Any, groups: int, bits: int, _: int) -> tuple[Any, Any]:
        """Integers, and one scale per group."""
        packed = torch.zeros(x.numel() * bits // 8, dtype=torch.int8)
        return packed, torch.ones(groups)

    def dequantize(self, x: Any, scales: Any, groups: int, bits: int, _: int) -> Any:
        """Half precision again."""
        shape = x.shape if bits == 8 else (x.numel() * 8 // bits,)
        return torch.full(shape, 1e-3, dtype=torch.half)

    def swizzle_quant(self, x: Any, groups: int, bits: int, kind: int, *_: int) -> Any:
        """As ``quantize``, in the order in which nodes and ranks take it."""
        return self.quantize(x, groups, bits, kind)

    def quantized_reduction(
        self, x: Any, scales: Any, groups: int, out_groups: int, bits: int, kind: int, ranks: int
    ) -> tuple[Any, Any]:
        """The sum of what ``ranks`` sent, quantized again."""
        return torch.zeros(x.numel() // ranks, dtype=torch.int8), torch.ones(out_groups)


def stand_in() -> None:
    """No CUDA: the quantizer's module is the one above."""
    from deepspeed.ops import op_builder

    op_builder.QuantizerBuilder.load = lambda self, verbose=True: Quantizer()


def steps(case: dict[str, Any]) -> list[Heard]:
    """Collectives of the case's last optimizer step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as in deepspeed_steps
    plain = torch.nn.functional.linear
    shape = dict(case["model"])
    seq, vocab = shape.pop("seq"), shape["vocab"]
    torch.manual_seed(0)
    model = deepspeed_steps.Gpt(**shape)
    config = case["config"]
    given: dict[str, Any] = {"model": model, "config": config}
    if "optimizer" not in config:
        given["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(**given)
    ids = torch.randint(vocab, (config["train_micro_batch_size_per_gpu"], seq))
    for _ in range(deepspeed_steps.STEPS):
        HEARD.clear()
        for _ in range(engine.gradient_accumulation_steps()):
            deepspeed_steps.PHASE = "forward"
            loss = engine(ids)
            deepspeed_steps.PHASE = "backward"
            engine.backward(loss)
            deepspeed_steps.PHASE = "step"
            engine.step()
    found = list(HEARD)
    engine.destroy()
    torch.nn.functional.linear = plain  # ZeRO-3's replacement outlives its engine
    return found


def main() -> None:
    """Run the cases of the first argument's file; rank 0 writes the second's."""
    listen()
    stand_in()
    source, target = (Path(argument) for argument in sys.argv[1:3])
    from deepspeed.utils import groups

    found = {}
    for case in json.loads(source.read_text()):
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # one size of group to a process
        groups._ALL_TO_ALL_GROUP = {}
        found[case["name"]] = steps(case)
    if int(os.environ["RANK"]) == 0:
        runs = {
            name: [[*call, len(list(run))] for call, run in groupby(calls)]
            for name, calls in found.items()
        }
        target.write_text(json.dumps(runs))
    dist.barrier()
    os._exit(0)  # at once: DeepSpeed's threads sometimes abort an interpreter that ends in order


if __name__ == "__main__":
    main()
