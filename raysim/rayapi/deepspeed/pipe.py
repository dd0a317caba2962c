"""``deepspeed.pipe``: ``PipelineModule`` and the engine that runs whole batches.

Real counterparts: ``deepspeed/runtime/pipe/{module,engine}.py``. Every rank holds all layers, as
shapes; which stage has which, and the schedule, are the training tower's.

Not modelled: ``topology=`` with other axes than pipe and data, ``base_seed``, checkpoints of layers
one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from raysim.rayapi.deepspeed.engine import DeepSpeedEngine
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.shapes.known import META, to_device
from raysim.rayapi.shapes.pipeline_evaluation import evaluated
from raysim.rayapi.shapes.pipelining import role_of
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing.operators import tensors


class LayerSpec:
    """``deepspeed.pipe.LayerSpec``: a layer to be built."""

    def __init__(self, typename: Any, *module_args: Any, **module_kwargs: Any) -> None:
        if not issubclass(typename, torch.nn.Module):
            raise RuntimeError("LayerSpec only supports torch.nn.Module types.")
        self.typename = typename
        self.module_args, self.module_kwargs = module_args, module_kwargs

    def build(self, log: bool = False) -> torch.nn.Module:
        """The layer."""
        del log
        made: torch.nn.Module = self.typename(*self.module_args, **self.module_kwargs)
        return made


class TiedLayerSpec(LayerSpec):
    """``deepspeed.pipe.TiedLayerSpec``: layers of one key share their weights."""

    def __init__(
        self, key: str, typename: Any, *module_args: Any, forward_fn: Any = None,
        tied_weight_attr: Any = "weight", **module_kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


class _Function(torch.nn.Module):
    """A layer that is a function, or a tied layer called by one."""

    def __init__(self, function: Any, module: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.module = function, module

    def forward(self, x: Any) -> Any:
        """Its value."""
        return self.function(x) if self.module is None else self.function(self.module, x)


class PipelineModule(torch.nn.Module):
    """``deepspeed.pipe.PipelineModule``."""

    def __init__(
        self,
        layers: Any,
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Any = None,
        seed_layers: bool = False,
        seed_fn: Any = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        **more: Any,
    ) -> None:
        super().__init__()
        del seed_layers, seed_fn, base_seed, more
        if num_stages is None and topology is None:
            raise RuntimeError("must provide num_stages or topology")
        if topology is not None:
            num_stages = topology.get_dim("pipe")
            others = [a for a in topology.get_axis_names() if a not in {"pipe", "data"}]
            if others:
                raise NotEmulatedError(f"PipelineModule of axes {others}", "pipe and data")
        steps, num_stages = steps_here(), int(num_stages or 1)
        world = num_stages if steps is None else int(steps.worker.context.world_size)
        if world % num_stages:
            raise RuntimeError(
                f"num_stages ({num_stages}) must divide distributed world size ({world})"
            )
        self.num_stages, self.loss_fn = num_stages, loss_fn
        self.partition_method = partition_method
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.layers = torch.nn.Sequential(*_built(layers))

    def forward(self, x: Any) -> Any:
        """Through all layers."""
        return self.layers(x)


def _built(layers: Any) -> Iterator[torch.nn.Module]:
    tied: dict[str, torch.nn.Module] = {}
    for layer in layers() if callable(layers) else layers:
        if isinstance(layer, TiedLayerSpec):
            module = tied.setdefault(layer.key, layer.build())
            if layer.forward_fn is None:
                yield module
            else:
                yield _Function(layer.forward_fn, module)
        elif isinstance(layer, LayerSpec):
            yield layer.build()
        elif isinstance(layer, torch.nn.Module):
            yield layer
        else:
            yield _Function(layer)


class PipelineEngine(DeepSpeedEngine):
    """``deepspeed.runtime.pipe.engine.PipelineEngine``."""

    def __init__(self, steps: Any, model: PipelineModule, *args: Any, **kwargs: Any) -> None:
        self.stages = model.num_stages
        super().__init__(steps, model, *args, **kwargs)
        self._iterator: Any = None
        self.stage_id = self.global_rank // self.mesh.dp

    def train_batch(self, data_iter: Any = None) -> torch.Tensor:
        """All micro-batches of a step, and the update; the mean loss, which has no value."""
        if data_iter is None:
            data_iter = self._own_data()
        for _ in range(self.gradient_accumulation_steps()):
            batch = next(data_iter)
            role_of(self._steps, self, self.module.layers, batch, partial(self._parts, batch))
        self._take_step()
        self.micro_steps += self.gradient_accumulation_steps()
        return torch.empty((), device=META)

    def _parts(self, batch: Any) -> Any:
        """Inputs, and the loss of what the layers make of them."""
        inputs, labels = _on_gpu(batch)
        return inputs, self.module.loss_fn and partial(_loss, self.module.loss_fn, labels)

    def eval_batch(
        self, data_iter: Any, return_logits: bool = False, compute_loss: bool = True,
        reduce_output: str = "avg", bcast_loss: bool = True, num_micro_batches: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Micro-batches forward through all stages, nothing backward; the loss has no value."""
        del compute_loss, reduce_output, bcast_loss
        if return_logits:
            raise NotEmulatedError("PipelineEngine.eval_batch(return_logits=)", "its loss")
        steps, count = self._steps, num_micro_batches or self.gradient_accumulation_steps()
        for _ in range(count):
            batch = next(data_iter)
            parts = partial(self._parts, batch)
            role = role_of(steps, self, self.module.layers, batch, parts, learns=False)
        evaluated(steps, self, role, count)
        steps.worker.meet()  # where the last stage tells the loss
        return torch.empty((), device=META)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """As DeepSpeed has it."""
        raise RuntimeError("Only train_batch() is accessible in pipeline mode.")

    backward = step = forward

    def is_first_stage(self) -> bool:
        """Whether it takes inputs."""
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        """Whether it computes the loss."""
        return self.stage_id == self.stages - 1

    def set_dataloader(self, loader: Any) -> None:
        """What ``train_batch()`` reads."""
        self.training_dataloader, self._iterator = loader, None

    def set_dataiterator(self, iterator: Any) -> None:
        """What ``train_batch()`` reads."""
        self._iterator = iterator

    def _own_data(self) -> Any:
        if self._iterator is None:
            self._iterator = _repeating(self.training_dataloader)
        return self._iterator


def _loss(loss_fn: Any, labels: Any, outputs: Any) -> Any:
    return loss_fn(outputs, labels)


def _repeating(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _on_gpu(batch: Any) -> tuple[Any, Any]:
    from torch.utils._pytree import tree_map_only

    inputs, labels = tree_map_only(torch.Tensor, to_device, batch)
    assert next(tensors(inputs), None) is not None, "a batch is (inputs, labels)"
    return inputs, labels
