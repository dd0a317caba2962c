"""``torch.distributed.pipelining.pipeline``: a model that torch cuts into stages by exporting it.

Real counterpart: ``torch/distributed/pipelining/_IR.py`` (2.13), which really runs, on shapes: the
stages are its graphs, with the modules that it outlines in them. What one stage makes for others
than the next one reaches them when the stages are traced together.

Simplified: what goes around the next stage is sent with all else from stage to stage. Exporting
takes no time.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from raysim.rayapi.shapes.known import META

if TYPE_CHECKING:
    from types import ModuleType

    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``torch.distributed.pipelining``'s representation of a split model."""
    r.around(module, "_modify_graph_op_device", _placed)
    r.around(module.Pipe, "_trace_with_export", _exported)
    r.around(module.Pipe, "from_tracing", _named)


def _exported(
    real: Any, steps: Steps, mod: Any, args: Any, kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The model's graph, of inputs where its weights are."""
    there = tree_map_only(torch.Tensor, lambda t: torch.empty_like(t, device=META), (args, kwargs))
    with steps.tracing(mod):
        return real(mod, *there)


def _named(real: Any, _steps: Steps, mod: Any, *args: Any, **kwargs: Any) -> Any:
    """Each stage is called after the model that it is of."""
    pipe = real(mod, *args, **kwargs)
    for stage in pipe.split_gm.children():
        stage.raysim_name = type(mod).__name__
    return pipe


def _placed(real: Any, _steps: Steps, graph: Any, _device: Any) -> None:
    """Tensors that a stage makes are made where all are."""
    real(graph, META)


@dataclass(frozen=True, kw_only=True)
class Route:
    """How a split model's stages hand on what they make."""

    calls: tuple[tuple[_From, ...], ...]
    """For each stage but the first, whose are the model's, where its inputs come from."""

    @classmethod
    def of(cls, stage: Any) -> Route | None:
        """Of the pipeline that a stage was built for; None: its script made the stage.

        Raises
        ------
        AttributeError
            The stage is wrapped, where torch reads its inputs off its graph.
        PipeliningMetadataError
            One but the first stage reads an input of the model, which torch cannot hand it.
        """
        pipe = getattr(stage, "pipe_info", None)
        if pipe is None or stage.submod.graph is None:
            return None
        nodes = [n for n in pipe.graph.nodes if n.op == "call_module"]
        places = {n: i for i, n in enumerate(nodes)}

        def source(node: Any) -> _From:
            if node in places:
                return _From(places[node], None)
            if node.op == "placeholder":
                utils = importlib.import_module("torch.distributed.pipelining._utils")
                error = f"a stage but the first reads the input {node}"
                raise utils.PipeliningMetadataError(error)
            return _From(places[node.args[0]], int(node.args[1]))  # operator.getitem

        return cls(calls=((), *(tuple(map(source, n.args)) for n in nodes[1:])))

    def run(
        self, stages: Sequence[torch.nn.Module], args: Any, kwargs: Sequence[Mapping[str, Any]]
    ) -> Any:
        """What the last stage makes; each has keywords of its own, the first the inputs too."""
        made: list[Any] = []
        for stage, sources, own in zip(stages, self.calls, kwargs, strict=True):
            given = (source.find(made) for source in sources) if made else args
            made.append(stage(*given, **own))
        return made[-1]


@dataclass(frozen=True)
class _From:
    stage: int
    part: int | None

    def find(self, made: Sequence[Any]) -> Any:
        """It, of what stages have made."""
        out = made[self.stage]
        return out if self.part is None else out[self.part]
