"""One rank of a real training step: time by phase, every collective, memory by category.

``python -m torch.distributed.run --nproc-per-node N -m raysim.measure.training_rank cases.json
found``: each rank writes ``found.<rank>.json``, case name to what :func:`steps` returns. A case is
``{"name", "engine", "model", "seq", "config"}``: a Hugging Face config and a DeepSpeed JSON; of
``ddp``, ``fsdp1`` and ``fsdp2``, whose JSON DeepSpeed never sees, the batch keys, ``bf16`` and
``gradient_clipping`` count; ``ddp`` holds arguments of ``DistributedDataParallel``, ``fsdp``
settings of FSDP.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from raysim.measure.training_device import on_device
from raysim.measure.training_ear import Ear
from raysim.measure.training_fsdp import flat_sharded, fully_sharded
from raysim.measure.training_models import (
    inputs,
    next_token_loss,
    pipeline_layers,
    transformer,
)

STEPS = 3
"""ZeRO-3 records its trace in the first, DDP rebuilds its buckets after it."""
EAR = Ear()
CPU = torch.device("cpu")


def yardstick() -> Callable[[], float]:
    """A fixed piece of work and its seconds: how busy others keep this rank's core right now."""
    a = torch.rand(256, 256)
    far = torch.rand(1 << 20)

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(4):
            torch.mm(a, a)
            far.add(1.0)
        return time.perf_counter() - start

    return sample


class Phases:
    """Wall seconds of the phases of one optimizer step; each waits for the GPU, if told to."""

    def __init__(self, waits: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._waits = waits and _cuda()
        self._start_s = time.perf_counter()

    def run(self, phase: str, work: Callable[[], Any]) -> Any:
        """Do ``work`` and add its time to ``phase``."""
        EAR.phase = phase
        start = time.perf_counter()
        found = work()
        if self._waits:
            torch.cuda.synchronize()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        return found

    def done(self) -> dict[str, float]:
        """All phases and the whole step."""
        return self.seconds | {"total": time.perf_counter() - self._start_s}


def tensor_bytes(tensors: Any) -> int:
    """Bytes of the distinct storages of these tensors."""
    storages = {}
    for t in tensors:
        if isinstance(t, torch.Tensor):
            own = getattr(t, "_local_tensor", t).untyped_storage()  # of a DTensor, this rank's
            storages[own.data_ptr()] = own.nbytes()
    return sum(size for pointer, size in storages.items() if pointer)


class Trainer:
    """Some optimizer steps of one case; subclasses know the engine."""

    reentrant = True
    """Which of torch's activation checkpointings a case with ``checkpoint`` has."""
    waits = True
    """Whether each phase of a step waits for the GPU."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        self.config: dict[str, Any] = dict(case["config"])
        self.accumulation: int = self.config.get("gradient_accumulation_steps", 1)
        self.micro_batch: int = self.config["train_micro_batch_size_per_gpu"]
        self.device = torch.device("cuda", torch.cuda.current_device()) if _cuda() else CPU
        self.dtype = torch.bfloat16 if "bf16" in self.config else torch.float32
        torch.manual_seed(1 + int(os.environ.get("RANK", "0")))
        self.inputs = inputs(case["model"], (self.micro_batch, case["seq"]), self.device)

    @property
    def ids(self) -> Any:
        """Token ids of a micro-batch of text."""
        return self.inputs["input_ids"]

    def model(self) -> Any:
        """The whole model on this rank's device."""
        with torch.device(self.device):
            model: Any = transformer(self.case["model"], self.case.get("attention"))
        if self.case.get("checkpoint"):
            model.gradient_checkpointing_enable({"use_reentrant": self.reentrant})
        return model

    def step(self) -> dict[str, float]:
        """One optimizer step; seconds by phase."""
        raise NotImplementedError

    def memory(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimizer states that this rank holds now."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""


class PlainTrainer(Trainer):
    """DDP and FSDP2: torch's own wrapper and optimizer."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        super().__init__(case)
        self.net = self._wrap(self.model().to(self.dtype))
        self.parameters = list(self.net.parameters())
        chosen = {key: case[key] for key in ("fused", "foreach") if key in case}
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, **chosen)
        self.gradients = 0

    def _wrap(self, model: Any) -> Any:
        raise NotImplementedError

    def step(self) -> dict[str, float]:
        """Forward and backward per micro-batch, reduction in the last; clip, step, clear."""
        phases = Phases(self.waits)
        for micro in range(self.accumulation):
            with self._sync(micro == self.accumulation - 1):
                loss = phases.run("forward", lambda: self.net(**self.inputs).loss)
                phases.run("backward", loss.backward)
        self.gradients = tensor_bytes(p.grad for p in self.parameters)
        phases.run("step", self._optimize)
        return phases.done()

    def _sync(self, last: bool) -> Any:
        raise NotImplementedError

    def _optimize(self) -> None:
        clip = self.config.get("gradient_clipping", 1.0)
        if clip:
            self._clip(clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _clip(self, norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, norm)

    def memory(self) -> dict[str, int]:
        """Gradients as they were before the last step cleared them."""
        states = (v for state in self.optimizer.state.values() for v in state.values())
        return {
            "parameter": tensor_bytes(self.parameters),
            "gradient": self.gradients,
            "optimizer_state": tensor_bytes(s for s in states if _dimensions(s)),
        }


class SingleTrainer(PlainTrainer):
    """A model on one device, without process groups.

    ``autocast`` keeps the weights in fp32 and casts per operator; ``compile`` compiles the model.
    """

    reentrant = False

    def _wrap(self, model: Any) -> Any:
        self._compute = (
            torch.autocast(self.device.type, torch.bfloat16)
            if self.case.get("autocast")
            else nullcontext()
        )
        return torch.compile(model) if self.case.get("compile") else model

    def _sync(self, last: bool) -> Any:  # noqa: ARG002  (nobody to synchronize with)
        return self._compute


class DdpTrainer(PlainTrainer):
    """``DistributedDataParallel``.

    Its reducer calls no Python; ``listen`` has torch's own hook call ``all_reduce`` in its place.
    """

    def _wrap(self, model: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        net: Any = torch.nn.parallel.DistributedDataParallel(model, **self.case.get("ddp", {}))
        if self.case.get("listen", True):
            net.register_comm_hook(None, allreduce_hook)
        return net

    def _sync(self, last: bool) -> Any:
        return nullcontext() if last else self.net.no_sync()


class Fsdp2Trainer(PlainTrainer):
    """``fully_shard`` on every decoder layer and on the root."""

    reentrant = False

    def _wrap(self, model: Any) -> Any:
        return fully_sharded(model, self.case.get("fsdp", {}))

    def _sync(self, last: bool) -> Any:
        every = self.case.get("fsdp", {}).get("sync_every_micro_batch", False)
        self.net.set_requires_gradient_sync(last or every)
        return nullcontext()


class Fsdp1Trainer(PlainTrainer):
    """``FullyShardedDataParallel`` around every decoder layer and the root."""

    reentrant = False

    def _wrap(self, model: Any) -> Any:
        return flat_sharded(model, self.case.get("fsdp", {}))

    def _sync(self, last: bool) -> Any:
        every = self.case.get("fsdp", {}).get("sync_every_micro_batch", False)
        return nullcontext() if last or every else self.net.no_sync()

    def _clip(self, norm: float) -> None:
        self.net.clip_grad_norm_(norm)


def without_operators_for_inference() -> None:
    """On CPUs DeepSpeed compiles, for half a minute, reductions that no training step uses."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class DeepSpeedTrainer(Trainer):
    """``deepspeed.initialize`` with the case's JSON and, unless it names one, torch's AdamW."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        super().__init__(case)
        import deepspeed

        without_operators_for_inference()
        self.linear = torch.nn.functional.linear
        model = self.model()
        own = {}
        if "optimizer" not in self.config:
            own["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.engine, *_ = deepspeed.initialize(model=model, config=self.config, **own)
        self.gradients = 0

    def step(self) -> dict[str, float]:
        """The engine's own loop: forward, backward and step per micro-batch."""
        phases = Phases(self.waits)
        for micro in range(self.accumulation):
            out = phases.run("forward", lambda: self.engine(**self.inputs))
            phases.run("backward", partial(self.engine.backward, out.loss))
            if micro == self.accumulation - 1:
                self.gradients = tensor_bytes(_gradients(self.engine))
            phases.run("step", self.engine.step)
        return phases.done()

    def memory(self) -> dict[str, int]:
        """After a step; gradients as they were before it."""
        return _engine_memory(self.engine) | {"gradient": self.gradients}

    def close(self) -> None:
        """Undo what ZeRO-3 leaves in torch beyond its engine's life."""
        self.engine.destroy()
        torch.nn.functional.linear = self.linear


class PipelineTrainer(Trainer):
    """``PipelineModule`` over ``stages``; DeepSpeed interleaves forward and backward itself."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        super().__init__(case)
        import deepspeed
        from deepspeed.pipe import PipelineModule

        without_operators_for_inference()
        deepspeed.init_distributed(dist_backend=dist.get_backend())  # the module asks for its rank
        pipe = {"num_stages": 2, "partition_method": "parameters", **case.get("pipeline", {})}
        module = PipelineModule(
            pipeline_layers(case["model"]), loss_fn=next_token_loss,
            activation_checkpoint_interval=0, **pipe,
        )  # fmt: skip
        own = torch.optim.AdamW((p for p in module.parameters() if p.requires_grad), lr=1e-4)
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=own, config=self.config)

    def _batches(self) -> Iterator[Any]:
        while True:
            yield self.ids, self.ids

    def step(self) -> dict[str, float]:
        """One ``train_batch``: the phases are one."""
        phases = Phases(self.waits)
        phases.run("batch", lambda: self.engine.train_batch(data_iter=self._batches()))
        return phases.done()

    def memory(self) -> dict[str, int]:
        """After a step."""
        return _engine_memory(self.engine)

    def close(self) -> None:
        """Free the engine's hooks."""
        self.engine.destroy()


TRAINERS: dict[str, type[Trainer]] = {
    "single": SingleTrainer,
    "ddp": DdpTrainer,
    "fsdp1": Fsdp1Trainer,
    "fsdp2": Fsdp2Trainer,
    "deepspeed": DeepSpeedTrainer,
    "pipeline": PipelineTrainer,
}


def _cuda() -> bool:
    return torch.cuda.is_available()


def _dimensions(state: Any) -> int:
    return state.dim() if isinstance(state, torch.Tensor) else 0


def _gradients(engine: Any) -> Iterator[Any]:
    """Whatever holds gradients between backward and the optimizer step, by ZeRO stage."""
    zero = engine.optimizer
    for p in engine.module.parameters():
        yield p.grad
    for group in (getattr(zero, "averaged_gradients", None) or {}).values():
        yield from group or ()
    yield getattr(zero, "grad_partitions_flat_buffer", None)
    for p in getattr(zero, "single_partition_of_fp32_groups", None) or ():
        yield p.grad


def _engine_memory(engine: Any) -> dict[str, int]:
    """Parameters (ZeRO-3: shards and what stays gathered); master copies and moments."""
    parameters = list(engine.module.parameters())
    weights = [getattr(p, "ds_tensor", p) for p in parameters]
    gathered = [p.data for p in parameters if hasattr(p, "ds_tensor") and p.data.numel()]
    basic = getattr(engine.optimizer, "optimizer", engine.optimizer)
    held = {w.untyped_storage().data_ptr() for w in (*weights, *gathered)}
    states = [v for state in basic.state.values() for v in state.values() if _dimensions(v)]
    masters = [
        p
        for group in basic.param_groups
        for p in group["params"]
        if p.untyped_storage().data_ptr() not in held
    ]
    masters += getattr(engine.optimizer, "fp32_partitioned_groups_flat", None) or []
    masters += getattr(engine.optimizer, "single_partition_of_fp32_groups", None) or []
    return {
        "parameter": tensor_bytes(weights),
        "gathered_parameter": tensor_bytes(gathered),
        "optimizer_state": tensor_bytes((*states, *masters)),
    }


def logged() -> dict[str, dict[str, int]]:
    """What DeepSpeed's own ``comms_logger`` counted: operation, bytes it says, calls."""
    from deepspeed.comm import comm

    return {
        op: {str(size): int(entry[0]) for size, entry in sizes.items()}
        for op, sizes in comm.comms_logger.comms_dict.items()
    }


def steps(case: Mapping[str, Any]) -> dict[str, Any]:
    """Run a case: seconds by phase of each step; collectives and memory of the last.

    Each step has a ``yardstick`` beside its phases; steps with a slow one shared the machine.
    """
    EAR.phase = "init"
    trainer = TRAINERS[case["engine"]](case)
    deepspeed = case["engine"] in {"deepspeed", "pipeline"}
    seconds = []
    busy = yardstick()
    for _ in range(case.get("steps", STEPS)):
        EAR.heard.clear()
        if deepspeed:
            _forget()
        before = busy()
        if dist.is_initialized():
            dist.barrier()
        seconds.append(trainer.step() | {"yardstick": max(before, busy())})
    found = {
        "seconds": seconds,
        "collectives": EAR.runs(),
        "comms_logger": logged() if deepspeed else {},
        "memory": trainer.memory(),
    }
    if _cuda():
        trainer.waits = False
        options = {"steps": case["free_steps"]} if "free_steps" in case else {}
        found |= on_device(trainer.step, profile=case.get("profile", False), **options)
    trainer.close()
    del trainer
    gc.collect()
    return found


def _forget() -> None:
    from deepspeed.comm import comm

    comm.comms_logger.comms_dict.clear()


def alone(source: Path, target: Path) -> None:
    """Run the cases of a file as the only rank; for a process that has no group yet."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if not _cuda():
        os.environ["DS_ACCELERATOR"] = "cpu"
    EAR.listen()
    found: dict[str, Any] = {}
    for case in json.loads(source.read_text(encoding="utf-8")):
        store: Any = getattr(dist, "HashStore")  # noqa: B009  (not among its exports)
        if case["engine"] != "single" and not dist.is_initialized():
            backend = "nccl" if _cuda() else "gloo"
            dist.init_process_group(backend, store=store(), rank=0, world_size=1)
        try:
            found[case["name"]] = steps(case)
        except Exception as error:  # noqa: BLE001  (torch's own, of any kind: the next may fit)
            found[case["name"]] = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        if _cuda():
            torch.cuda.empty_cache()
        target.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    """Run the cases of the first argument's file; each rank writes its own answer."""
    source, target = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if _cuda():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    EAR.listen()
    dist.init_process_group("nccl" if _cuda() else "gloo")
    found: dict[str, Any] = {}
    for case in json.loads(source.read_text(encoding="utf-8")):
        found[case["name"]] = steps(case)
        dist.barrier()
        # Written after every case, so that an interrupt loses one at most.
        Path(f"{target}.{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # at once: DeepSpeed's threads sometimes abort an interpreter that ends in order


if __name__ == "__main__":
    main()
