"""What eager PyTorch costs the host: layers of tiny tensors, checkpoints, collective calls.

On tensors this small a CPU computes nothing worth mentioning, so the time of a layer is that of
Python, of ``Module.__call__`` and of the dispatcher, and of a backward that of autograd's engine.
A layer is the difference between a deep and a shallow model, each run in turn, so that whatever
slows the host slows both. ``operators`` are ATen calls of one layer's forward, views included,
``nodes`` its autograd nodes, ``modules`` its module calls: all counted, not assumed.

Not measured: NCCL's part of a collective. ``host_memory.csv``, which is filled first, says what
threads do over main memory. With a GPU the same layers are there too (``host_dispatch_gpu.csv``,
with ``kernels`` counted by the profiler): wall time, for tiny kernels end before the host has
launched the next. ``host_training.csv`` (``host_training``) is what a step does beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from raysim.measure import host_data, host_memory, host_training
from raysim.measure.session import Point, Session, needs, repeat

TABLE = "host_dispatch"
GPU_TABLE = "host_dispatch_gpu"
COLUMNS = ("quantity", "subject", "operators", "nodes", "modules")
DEEP, SHALLOW = 6, 2
TOKENS, HIDDEN, HEADS = 8, 64, 4
_SIZES = {"num_hidden_layers": 0, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"intermediate_size": 128},
    "qwen3": _SIZES | {"intermediate_size": 128, "head_dim": 16, "num_key_value_heads": 2},
    "bert": _SIZES | {"intermediate_size": 128},
    "gpt2": _SIZES,
    "opt": _SIZES | {"ffn_dim": 128, "word_embed_proj_dim": HIDDEN},
}
"""Families and their small configurations."""
Seconds = tuple[float, float]
"""Forward and backward."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one layer."""

    operators: int
    nodes: int
    modules: int


def measure(session: Session) -> None:
    """Fill ``host_memory.csv``, then ``host_dispatch.csv``.

    Raises
    ------
    CalibrationError
        torch or transformers is not there.
    """
    for package in ("torch", "transformers"):
        needs(package, "host")
    import torch

    host_memory.measure(session)
    host_data.measure(session)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with session.table(TABLE, COLUMNS, "CPU time of one thread") as table:
            session.run(table, points(quick=session.quick), share=0.4)
        if torch.cuda.is_available():
            with session.table(GPU_TABLE, (*COLUMNS, "kernels")) as table:
                session.run(table, gpu_points(quick=session.quick), share=0.5)
        host_training.measure(session)
    finally:
        torch.set_num_threads(threads)


def points(*, quick: bool) -> Iterator[Point]:
    """Layers of each family, by attention and pass; a checkpoint; a collective."""
    for family in ("llama",) if quick else MODELS:
        for attention in ("eager",) if quick else ("eager", "sdpa"):
            of = count_layer(family, attention)
            for index, quantity in enumerate(("forward", "backward")):
                work = _layer(family, attention, index)
                yield _point(quantity, f"{family}/{attention}", work, of)
        subject = f"{family}/sdpa, use_reentrant=False"
        yield _point("checkpoint", subject, _hooked(family), count_layer(family, "sdpa"))
    yield _point("checkpoint", "torch.utils.checkpoint", _checkpoint)
    yield _point("collective", "all_reduce", _collective)


def gpu_points(*, quick: bool) -> Iterator[Point]:
    """Layers of each family on the GPU."""
    for family in ("llama",) if quick else MODELS:
        of = count_layer(family, "sdpa")
        kernels = count_kernels(family)
        for index, quantity in enumerate(("forward", "backward")):
            point = _point(quantity, f"{family}/sdpa", _layer(family, "sdpa", index, "cuda"), of)
            yield replace(point, parameters={**point.parameters, "kernels": kernels[index]})


def count_kernels(family: str) -> tuple[int, int]:
    """Kernels that one more layer launches on the GPU, forward and backward."""
    deep, shallow = (_kernels(_model(family, "sdpa", n, "cuda")) for n in (DEEP, SHALLOW))
    forward, backward = ((a - b) // (DEEP - SHALLOW) for a, b in zip(deep, shallow, strict=True))
    return forward, backward


def _kernels(model: Any) -> list[int]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    def launched(work: Callable[[], Any]) -> tuple[Any, int]:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            out = work()
            torch.cuda.synchronize()
        calls: Any = seen.key_averages()
        return out, sum(row.count for row in calls if "LaunchKernel" in row.key)

    total, forward = launched(lambda: _run(model).sum())
    _, backward = launched(total.backward)
    return [forward, backward]


def _point(
    quantity: str,
    subject: str,
    work: Callable[[float], Sequence[float]],
    of: Counts = Counts(0, 0, 0),
) -> Point:
    parameters = {
        "quantity": quantity, "subject": subject, "operators": of.operators,
        "nodes": of.nodes, "modules": of.modules,
    }  # fmt: skip
    return Point(parameters=parameters, measure=work)


@cache
def _model(family: str, attention: str, layers: int, device: str = "cpu") -> Any:
    import transformers

    keys = MODELS[family] | {"num_hidden_layers": layers, "vocab_size": 100, "pad_token_id": 0}
    keys |= {"bos_token_id": 1, "eos_token_id": 2}
    config: Any = transformers.AutoConfig.for_model(family, **keys)
    for key in dict(config.to_dict()):  # dropout is one kernel on a GPU and four operators here
        if "dropout" in key or key.endswith("_pdrop"):
            setattr(config, key, 0.0)
    automatic: Any = transformers.AutoModel
    return automatic.from_config(config, attn_implementation=attention).to(device).train()


def _run(model: Any) -> Any:
    import torch

    ids = torch.zeros(1, TOKENS, dtype=torch.long, device=model.device)
    return model(ids, use_cache=False).last_hidden_state


def count_layer(family: str, attention: str) -> Counts:
    """Operators, nodes and module calls that one more layer adds."""
    deep, shallow = (counts(_model(family, attention, n)) for n in (DEEP, SHALLOW))
    more = [(a - b) // (DEEP - SHALLOW) for a, b in zip(deep, shallow, strict=True)]
    return Counts(*more)


def counts(model: Any, run: Callable[[Any], Any] = _run) -> tuple[int, int, int]:
    """ATen operators, autograd nodes and module calls of one forward, and of its backward."""
    from torch.utils import _python_dispatch

    seen = [0, 0]
    mode: Any = _python_dispatch.TorchDispatchMode

    class Counting(mode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.name()  # of detach: autograd's own, of a saved output
            seen[0] += name != "aten::detach"
            return func(*args, **(kwargs or {}))

    def called(*_: object) -> None:
        seen[1] += 1

    handles = [m.register_forward_pre_hook(called) for m in model.modules()]
    try:
        with Counting():
            out = run(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen[0], _nodes(out.grad_fn), seen[1]


def _nodes(root: Any) -> int:
    """Autograd nodes that a backward from ``root`` runs, gradients' accumulation included."""
    known, left = {root}, [root]
    while left:
        for node, _ in left.pop().next_functions:
            if node is not None and node not in known:
                known.add(node)
                left.append(node)
    return len(known)


def _layer(
    family: str, attention: str, index: int, device: str = "cpu"
) -> Callable[[float], Sequence[float]]:
    """Seconds of one layer's forward (``index`` 0) or backward (1)."""

    def sample(_: int) -> float:
        models = (_model(family, attention, n, device) for n in (DEEP, SHALLOW))
        deep, shallow = (_pass_s(model, device)[index] for model in models)
        return (deep - shallow) / (DEEP - SHALLOW)

    return lambda allowed_s: repeat(sample, allowed_s, inner_most=1)


def _pass_s(model: Any, device: str = "cpu") -> Seconds:
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    out = _run(model)
    forward = clock()
    total = out.sum()
    summed = clock()
    total.backward()
    ended = clock()
    model.zero_grad(set_to_none=True)
    return forward - began, ended - summed


def _checkpoint(allowed_s: float) -> Sequence[float]:
    """What a reentrant checkpoint adds to recomputing.

    Random states kept and restored, detached inputs, a backward inside the backward.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    blocks = [_block(torch) for _ in range(8)]

    def passes_s(kept: bool) -> Seconds:
        began = time.process_time()
        h: Any = torch.zeros(4, 8, requires_grad=True)
        for block in blocks:
            h = block(h) if kept else checkpoint(block, h, use_reentrant=True)
        forward = time.process_time()
        h.sum().backward()
        return forward - began, time.process_time() - forward

    def sample(_: int) -> float:
        kept, checkpointed = passes_s(kept=True), passes_s(kept=False)
        return (checkpointed[1] - sum(kept)) / len(blocks)

    return repeat(sample, allowed_s, inner_most=1)


def _hooked(family: str) -> Callable[[float], Sequence[float]]:
    """What a non-reentrant checkpoint of one layer adds to a second forward: hooks, above all."""

    def layer_s(models: Sequence[Any]) -> Seconds:
        deep, shallow = (_pass_s(model) for model in models)
        forward, backward = ((d - s) / (DEEP - SHALLOW) for d, s in zip(deep, shallow, strict=True))
        return forward, backward

    def sample(_: int) -> float:
        kept = [_model(family, "sdpa", n) for n in (DEEP, SHALLOW)]
        forward, backward = layer_s(kept)
        again = layer_s([_checkpointed(family, n) for n in (DEEP, SHALLOW)])
        return sum(again) - 2 * forward - backward

    return lambda allowed_s: repeat(sample, allowed_s, inner_most=1)


@cache
def _checkpointed(family: str, layers: int) -> Any:
    model = deepcopy(_model(family, "sdpa", layers))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _block(torch: Any) -> Any:
    linear, norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
    return torch.nn.Sequential(linear, torch.nn.GELU(), norm, torch.nn.Linear(8, 8))


def _collective(allowed_s: float) -> Sequence[float]:
    """One ``all_reduce`` of a process group that does nothing: Python and c10d's dispatch."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        tensor = torch.zeros(4)

        def sample(times: int) -> float:
            began = time.process_time()
            for _ in range(times):
                dist.all_reduce(tensor)
            return (time.process_time() - began) / times

        return repeat(sample, allowed_s)
    finally:
        dist.destroy_process_group()
