"""``torch.distributed.pipelining``: a schedule's step over stages that ranks have between them.

Real counterpart: ``torch/distributed/pipelining/{stage,schedules}.py`` (2.13). Ranks of a pipeline
show each other their stages, the first its inputs and the last its loss; one traces them in turn as
a single model, which the training tower cuts again where the stages do.

Simplified: between two stages' blocks, what ends one and what begins the next belongs to the
earlier. Chunks are even; of several outputs the first is handed back. A plain 1F1B sends as
Megatron-LM does (both batch a send and a receive) and keeps a stage's outputs no longer than it,
which torch does until their backward.

Not modelled: schedules from files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from raysim.models.table import Layer
from raysim.rayapi.shapes.known import META, with_values
from raysim.rayapi.shapes.mesh import ranks_of
from raysim.rayapi.shapes.mode import no_value
from raysim.rayapi.shapes.pipeline_evaluation import evaluated
from raysim.rayapi.shapes.plans import describe
from raysim.rayapi.shapes.roles import Role, bytes_of, samples_of
from raysim.rayapi.shapes.sharded_stages import sharded_stages
from raysim.rayapi.shapes.split_models import Route
from raysim.rayapi.shapes.spread import degree
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing import Script, trace
from raysim.tracing.operators import tensors
from raysim.training.settings.deepspeed import PipelineSettings, ScheduleName
from raysim.training.settings.parallel import Mesh

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

SCHEDULES: dict[str, ScheduleName] = {
    "ScheduleGPipe": "gpipe", "Schedule1F1B": "megatron_1f1b",
    "ScheduleInterleaved1F1B": "interleaved", "ScheduleLoopedBFS": "looped_bfs",
    "ScheduleInterleavedZeroBubble": "zb_h1",
    "ScheduleZBVZeroBubble": "zb_v", "ScheduleDualPipeV": "dualpipe_v",
}  # fmt: skip
"""What the tower calls them."""
_CHUNKED = ("interleaved", "looped_bfs", "zb_h1")
_STAGE = re.compile(r"stage_(\d+)\b")


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``torch.distributed.pipelining``."""
    for kind in (module.schedules.PipelineScheduleSingle, module.schedules.PipelineScheduleMulti):
        r.around(kind, "step", _step)


def role_of(
    steps: Steps, owner: Any, layers: Any, batch: Any,
    parts: Callable[[], tuple[Any, Callable[[Any], Any] | None]], *, learns: bool = True,
) -> Role:  # fmt: skip
    """Of a micro-batch through all layers of a pipeline, traced once for all ranks.

    ``parts``: its inputs on the GPU, and the loss of the outputs.
    """
    key = steps.begin_pipeline(owner, batch, learns=learns)
    if key not in steps.shared.roles:
        inputs, loss = parts()
        steps.recomputes = ""
        with torch.enable_grad(), steps.tracing(owner):
            model = trace(
                layers, with_values(inputs), loss=loss, name=_name(describe(owner).module),
                script=Script(unknown=no_value),
            )  # fmt: skip
        steps.shared.roles[key] = Role(
            outputs=None, model=model, recomputes=steps.recomputes, batch=samples_of(inputs),
            input_bytes=bytes_of(inputs),
        )  # fmt: skip
    return steps.shared.roles[key]


def _name(module: Any) -> str:
    """Its class, or those of the stages that it is put together of."""
    parts = module.children() if isinstance(module, _Stages) else [module]
    names = (getattr(part, "raysim_name", type(part).__name__) for part in parts)
    return " - ".join(dict.fromkeys(names))


@dataclass(kw_only=True)
class _Brought:
    """What one rank shows the others: itself, not a copy."""

    stages: Sequence[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any

    def __deepcopy__(self, memo: Any) -> _Brought:
        """Ranks are one process here."""
        del memo
        return self


class _Stages(torch.nn.Module):
    """All of a pipeline, in turn."""

    def __init__(self, stages: Iterable[torch.nn.Module], route: Route | None) -> None:
        super().__init__()
        self._route = route
        self.raysim_wrapping: Any = None
        self.table: Any = None
        """Whose layers that has cut."""
        for i, stage in enumerate(stages):
            self.add_module(f"stage_{i}", stage)

    def forward(self, args: Any, kwargs: Sequence[dict[str, Any]]) -> Any:
        """Each is given what the one before has made, and keywords of its own."""
        if self._route is not None:
            return self._route.run(list(self.children()), args, kwargs)
        for stage, own in zip(self.children(), kwargs, strict=True):
            made = stage(*(_over(stage, t) for t in args), **own)
            args = made if isinstance(made, tuple) else (made,)
        return args if len(args) > 1 else args[0]


def _over(stage: torch.nn.Module, given: Any) -> Any:
    """What is spread over one stage's ranks is over the next one's, as it is received."""
    mesh = next((p.device_mesh for p in stage.parameters() if isinstance(p, DTensor)), None)
    if not isinstance(given, DTensor) or mesh is None or given.device_mesh == mesh:
        return given
    return DTensor.from_local(
        given.to_local(), mesh, given.placements, run_check=False, shape=given.shape,
        stride=given.stride(),
    )  # fmt: skip


def _step(
    _real: Any, steps: Steps, self: Any, *args: Any, target: Any = None, losses: Any = None,
    return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """All micro-batches of a step, forward and backward, or of ``eval()``, forward alone."""
    learns, loss_fn = self._has_backward, self._loss_fn
    own = getattr(self, "_stages", None) or [self._stage]
    ranks = ranks_of(own[0].group) or range(steps.worker.expect_group().context.world_size)
    brought = _Brought(stages=own, args=args, kwargs=kwargs, target=target)
    everyone = steps.worker.exchange(brought)
    line = _in_order(everyone[rank] for rank in ranks)
    model, count = _model_of(self, line), self._n_microbatches
    batch = _micro_batch(line, count)
    outputs: list[torch.Tensor] = []

    def loss(made: Any) -> Any:
        outputs[:] = [next(tensors(made))]
        return made if loss_fn is None else loss_fn(made, batch[2], **(loss_kwargs or {}))

    role = role_of(steps, model, model, batch, lambda: (batch[:2], loss), learns=learns)
    if outputs:
        role.outputs = outputs[0].shape, outputs[0].dtype
    if model.table is not role.model:
        model.raysim_wrapping = _wrapping(self, steps, model, role.model, line, own)
        model.table = role.model
    if learns:
        steps.pipeline_ran(count)
    else:
        evaluated(steps, model, role, count)
    ends = any(stage.is_last for stage in own)
    if ends and losses is not None and loss_fn is not None:
        losses[:] = [torch.empty((), device=META) for _ in range(count)]
    if not (ends and return_outputs):
        return None
    (first, *more), dtype = role.outputs
    return torch.empty(first * count, *more, dtype=dtype, device=META)


_Line = list[tuple[Any, _Brought]]


def _in_order(ranks: Iterable[_Brought]) -> _Line:
    """A pipeline's stages, each with what its rank has brought."""
    return sorted(((s, b) for b in ranks for s in b.stages), key=lambda pair: pair[0].stage_index)


def _model_of(schedule: Any, line: _Line) -> _Stages:
    """The same one each time, for this rank."""
    own = vars(schedule)
    if "raysim_stages" not in own:
        parts = (describe(stage.submod).module for stage, _ in line)
        own["raysim_stages"] = _Stages(parts, Route.of(line[0][0]))
    found: _Stages = own["raysim_stages"]
    return found


def _micro_batch(line: _Line, count: int) -> tuple[Any, ...]:
    """The first stage's inputs, each stage's keywords, the last one's target."""

    def part(t: torch.Tensor) -> torch.Tensor:
        return t[: -(-t.shape[0] // count)] if t.dim() else t

    found = line[0][1].args, [brought.kwargs for _, brought in line], line[-1][1].target
    parts: tuple[Any, ...] = tree_map_only(torch.Tensor, part, found)
    return parts


def _wrapping(
    schedule: Any, steps: Steps, model: _Stages, table: Any, line: _Line, own: Sequence[Any]
) -> Any:
    """How it is trained: as each stage is, over what the pipeline leaves of the ranks."""
    ranks = len(line) // len(own)
    name = SCHEDULES.get(type(schedule).__name__)
    if name is None:
        raise NotEmulatedError(type(schedule).__name__, ", ".join(SCHEDULES))
    within, world = sharded_stages([s for s, _ in line]), steps.worker.context.world_size
    tp = degree(steps, replace(within, module=model))
    dp, rest = divmod(world, ranks * tp)
    if rest or (within.engine == "fsdp" and dp != within.among):
        raise NotEmulatedError(
            f"stages over {within.among} of {world} ranks, in pipelines of {ranks} and tensor "
            f"parallelism of {tp}", "an init_device_mesh of all ranks: pp, dp (or two of it), tp",
        )  # fmt: skip
    first = _first_layers(table.layers, ranks * len(own))
    return replace(
        within, module=model, meets=within.meets or ranks * tp == world,
        among=within.among * ranks, mesh=Mesh(dp=dp if within.meets else 1, pp=ranks, tp=tp),
        pipeline=PipelineSettings(
            stages=ranks, schedule=name, first_layers=first, pipe_partitioned=False,
            grad_partitioned=False, virtual_stages=len(own) if name in _CHUNKED else None,
        ),
    )  # fmt: skip


def _first_layers(layers: Sequence[Layer], stages: int) -> tuple[int, ...]:
    """Where each stage begins."""
    found = {0: 0}
    for i, layer in enumerate(layers):
        names = (f"{layer.name}.{m.name}" for m in layer.body.modules)
        inside = [int(m[1]) for name in names if (m := _STAGE.search(name))]
        if inside:
            found.setdefault(min(inside), i)
    if len(found) < stages:
        raise NotEmulatedError("a stage of a pipeline without layers", "layers in every stage")
    return tuple(found[i] for i in range(stages))
