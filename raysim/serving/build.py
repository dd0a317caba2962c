"""An engine on the GPUs of nodes like one: its times, its memory, its stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from raysim.errors import InfeasibleError
from raysim.hardware.specs import NodeSpec
from raysim.hardware.topology import Topology
from raysim.perf.collectives import GroupShape
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import Decoder
from raysim.serving.engine import LLMEngine
from raysim.serving.settings import EngineSettings
from raysim.serving.stages import stages_of
from raysim.serving.timing import VLLM_2026, Constants, IterationTimes, group_of

if TYPE_CHECKING:
    from raysim.kernel.simulation import Simulation


def engine_on(
    simulation: Simulation,
    decoder: Decoder,
    node: NodeSpec,
    settings: EngineSettings,
    *,
    constants: Constants = VLLM_2026,
    around: tuple[Topology, int] | None = None,
) -> LLMEngine:
    """One engine; its stages are on as many nodes as they need.

    Parameters
    ----------
    around
        The cluster and the number of the engine's first node, for tensor-parallel ranks that one
        node does not hold; without it they are on one node.

    Raises
    ------
    InfeasibleError
        The model leaves no room for a sequence of ``max_model_len`` tokens, or cannot be split so.
    """
    _may_be_split(decoder, settings)
    assert node.gpu is not None, f"an engine on {node.name}, which has no GPU"
    settings = settings.for_gpu(node.gpu)

    if around is None or settings.expert_ranks <= node.gpu_count:
        times = _times_on_one(decoder, node, settings, constants)
    else:

        def group(ranks: int) -> GroupShape | None:
            across = ranks > node.gpu_count
            return _group_across(*around, ranks) if across else group_of(node, ranks)

        times = _times(decoder, node, settings, constants, group)
    capacity = capacity_of(decoder, node.gpu, settings, constants.marlin)
    stages = stages_of(decoder, node, settings)
    return LLMEngine(simulation, times, capacity, settings, stages=stages)


def _times(
    decoder: Decoder,
    node: NodeSpec,
    settings: EngineSettings,
    constants: Constants,
    group: Callable[[int], GroupShape | None],
) -> IterationTimes:
    assert node.gpu is not None, f"an engine on {node.name}, which has no GPU"
    shared = settings.data_parallel_size > 1
    return IterationTimes(
        decoder, node.gpu, group(settings.tensor_parallel_size),
        kv_bytes=settings.kv_bytes, eager=settings.enforce_eager, constants=constants,
        experts=group(settings.expert_ranks) if shared else None,
        whole_experts=settings.enable_expert_parallel,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _times_on_one(
    decoder: Decoder, node: NodeSpec, settings: EngineSettings, constants: Constants
) -> IterationTimes:
    """The same object for alike engines: what one has worked out, its fleet need not again."""
    return _times(decoder, node, settings, constants, lambda ranks: group_of(node, ranks))


def _group_across(topology: Topology, first: int, ranks: int) -> GroupShape:
    """Ranks that fill nodes like the first, which come after it in the cluster."""
    node = topology.specs[first]
    alike = [n for n, spec in enumerate(topology.specs) if spec == node]
    order = [first, *(n for n in alike if n != first)]
    needed = ceil(ranks / node.gpu_count)
    if len(order) < needed:
        raise InfeasibleError(
            f"{ranks} tensor-parallel ranks need {needed} nodes of {node.gpu_count} GPUs, there "
            f"are {len(order)}: lower tensor_parallel_size",
            {"nodes": 1},
        )
    places = [(n, local) for n in order for local in range(node.gpu_count)][:ranks]
    return GroupShape.on(node, **topology.spread(places)._asdict())


def _may_be_split(decoder: Decoder, settings: EngineSettings) -> None:
    """As vLLM checks it (``ModelConfig.verify_with_parallel_config``)."""
    count, ranks = settings.pipeline_parallel_size, settings.tensor_parallel_size
    if count > decoder.layers:
        raise InfeasibleError(
            f"{count} pipeline stages of {decoder.layers} layers: lower pipeline_parallel_size",
            {"layers": 1},
        )
    heads = max(b.heads for b in decoder.blocks)
    if heads % ranks:
        raise InfeasibleError(
            f"{heads} attention heads do not divide among {ranks} tensor-parallel ranks: choose a "
            "tensor_parallel_size that divides them",
            {"attention heads": 1},
        )
