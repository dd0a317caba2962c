"""Running operators from a plan.

Real counterpart: ``_internal/planner/planner.py``, ``build_streaming_topology``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.exchange import Exchange
from raysim.raylibs.data.map_operator import MapOperator
from raysim.raylibs.data.mixing import Mixing
from raysim.raylibs.data.operators import Operator, Passing
from raysim.raylibs.data.plan import Plan
from raysim.raylibs.data.regroup import Regroup
from raysim.raylibs.data.specs import Limit, Split
from raysim.raylibs.data.splitter import Splitter
from raysim.raylibs.data.stages import Collect, ExchangeStage, Inputs, MapStage, Regrouped


def build(
    plan: Plan,
    context: DataContext,
    process: CoreProcess,
    on_change: Callable[[Any], object],
    streams: Streams,
    storage: Any,
    label: str,
) -> list[Operator]:
    """The operators of a plan in its order, linked; names are made unique."""
    made: list[Operator] = []
    for index, node in enumerate(plan):
        inputs = [made[i] for i in node.inputs]
        stage = node.stage
        op: Operator
        if isinstance(stage, MapStage):
            name = _unique(stage.name, made)
            op = MapOperator(
                stage, name, inputs, context, process, on_change,
                rng=streams(f"{label}/{index}/{stage.name}"), storage=storage,
            )  # fmt: skip
        elif isinstance(stage, Inputs):
            op = _inputs(stage, _unique(stage.name, made), context)
        elif isinstance(stage, Limit):
            op = Passing(_unique(f"limit={stage.rows}", made), inputs, context)
            op.rows_left = stage.rows
        elif isinstance(stage, Split):
            op = Splitter(stage, _unique(f"split({stage.n})", made), inputs, context, process)
        elif isinstance(stage, Regrouped):
            op = Regroup(stage, _unique(stage.name, made), inputs, context, process)
        elif isinstance(stage, ExchangeStage):
            op = Exchange(stage, _unique(stage.name, made), inputs, context, process)
        elif isinstance(stage, Collect):
            op = Passing(_unique(stage.name, made), inputs, context)
            op.materializes, op.order = True, stage.order
        elif stage.weights:
            op = Mixing(stage, _unique("Mix", made), inputs, context)
        else:
            op = Passing(_unique(type(stage).__name__, made), inputs, context)
        for before in inputs:
            before.links.after.append(op)
        made.append(op)
    return made


def _inputs(stage: Inputs, name: str, context: DataContext) -> Passing:
    op = Passing(name, [], context)
    for block in stage.blocks:
        op.links.give(block)
    op.links.inputs_done = True
    return op


def _unique(name: str, made: list[Operator]) -> str:
    """Ray tells operators apart by number; here by name."""
    same = sum(op.name == name or op.name.startswith(f"{name} #") for op in made)
    return f"{name} #{same + 1}" if same else name
