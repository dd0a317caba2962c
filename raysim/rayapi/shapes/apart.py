"""A model on several GPUs of one process: which layers each has.

Real counterparts: modules that a script moves to ``cuda:0``, ``cuda:1``, ..., Accelerate's
``dispatch_model``. The training tower plays it as stages of a pipeline that work in turn
(``in_turn``): each micro-batch goes through all GPUs and back before the next begins; what one GPU
makes of a layer's outputs is copied to the next layer's. A GPU has the optimizer states of its own
parameters.

Simplified: a layer whose parameters are on several GPUs is where most of its elements are; a copy
takes what NCCL's takes; what a script does beside the model is on the first layer's GPU; the GPUs'
updates run side by side, launches too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from raysim.models.table import Layer, Model
from raysim.rayapi.shapes import devices, fetched
from raysim.rayapi.shapes.plans import Wrapping, own_name
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps


def apart(steps: Steps, wrapping: Wrapping, model: Model, *, trains: bool = True) -> Wrapping:
    """With the GPUs that the model's layers are on, if they are several of one process.

    Raises
    ------
    NotEmulatedError
        Processes on several nodes do so under ``DistributedDataParallel``; a model is trained that
        has layers in main memory.
    """
    if trains and fetched.of(steps, wrapping.module).size_bytes:
        raise NotEmulatedError(
            "training a model with layers on the CPU (device_map), which Accelerate refuses",
            "device_map of GPUs alone, or DeepSpeed's or FSDP's offload",
        )
    if len(devices.used(steps)) < 2 or wrapping.engine != "ddp":
        return wrapping
    context = steps.worker.context
    known: dict[int, tuple[Model, Wrapping]] = steps.worker.globals.setdefault(apart, {})
    found = known.get(id(model))
    if found is None or found[1].module is not wrapping.module:
        placed = _placed(wrapping, model, context.world_size if wrapping.meets else 1)
        if placed.gpus and wrapping.meets and len(context.gang.nodes) > 1:
            raise NotEmulatedError(
                f"DistributedDataParallel on {len(context.gang.nodes)} nodes around a model that "
                f"lies on {len(placed.gpus)} GPUs", "one node, or a GPU for each rank"
            )  # fmt: skip
        found = known[id(model)] = model, placed
    return found[1]


def _placed(wrapping: Wrapping, model: Model, ranks: int) -> Wrapping:
    on = {own_name(name): devices.gpu_of(p) for name, p in wrapping.module.named_parameters()}
    where = _gpus(model.layers, on)
    gpus = sorted({*where})
    if len(gpus) < 2:
        return wrapping
    runs = [(gpu, [i for i, _ in run]) for gpu, run in groupby(enumerate(where), lambda e: e[1])]
    return replace(
        wrapping, mesh=Mesh(pp=len(gpus), dp=ranks), gpus=tuple(gpus), copies=1, copied_to=(),
        pipeline=PipelineSettings(
            stages=len(gpus), schedule="in_turn", pipe_partitioned=False, grad_partitioned=False,
            first_layers=tuple(layers[0] for _, layers in runs),
            homes=tuple(gpus.index(gpu) for gpu, _ in runs),
        ),
    )  # fmt: skip


def _gpus(layers: Sequence[Layer], on: Mapping[str, str]) -> list[str]:
    """Of each layer; one without parameters is where the layer before it is."""
    found, last = list[str](), ""
    for layer in layers:
        sizes = Counter[str]()
        for p in layer.body.parameters:
            sizes[on.get(p.tied_to or layer.full(p.name), "")] += p.numel
        del sizes[""]
        last = max(sizes, key=lambda gpu: sizes[gpu], default=last)
        found.append(last)
    first = next((gpu for gpu in found if gpu), "")
    return [gpu or first for gpu in found]
