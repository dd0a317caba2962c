"""An engine on the GPUs of nodes like one: its times, its memory, its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.errors import InfeasibleError
from raysim.hardware.specs import NodeSpec
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
) -> LLMEngine:
    """One engine; its tensor-parallel ranks are on one node, its stages on as many as they need.

    Raises
    ------
    InfeasibleError
        The model leaves no room for a sequence of ``max_model_len`` tokens, or cannot be split so.
    """
    _may_be_split(decoder, settings)
    assert node.gpu is not None, f"an engine on {node.name}, which has no GPU"
    settings = settings.for_gpu(node.gpu)
    times = IterationTimes(
        decoder, node.gpu, group_of(node, settings.tensor_parallel_size),
        kv_bytes=settings.kv_bytes, eager=settings.enforce_eager, constants=constants,
    )  # fmt: skip
    capacity = capacity_of(decoder, node.gpu, settings)
    stages = stages_of(decoder, node, settings)
    return LLMEngine(simulation, times, capacity, settings, stages=stages)


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
