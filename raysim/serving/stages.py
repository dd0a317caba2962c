"""Pipeline stages of an engine: how many, and what a batch's way from one to the next takes.

Real counterpart: vLLM's ``pipeline_parallel_size``: as many batches are under way as there are
stages, each of other sequences, or of other chunks of a prompt. Layers are split evenly; hidden
states and residuals go on in slices, one per tensor-parallel rank.

Not modelled: batches of unequal numbers of sequences, which vLLM does not even out, and the filling
of the pipeline by a prompt's first chunk. In the one run that was published with another to compare
(gpt-oss-120b on two H100, GPUStack's lab, a thousand chats at once) two stages served 27 requests/s
where two tensor-parallel ranks served 39; here it is 28 to 35 and 30 to 37, by how lengths spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from raysim.hardware.specs import NodeSpec
from raysim.serving.decoder import BF16_BYTES, Decoder
from raysim.serving.settings import EngineSettings

HOP_S = 0.2e-3
"""Before a hop's bytes: names and shapes of tensors go ahead, from process to process; assumed."""
SENT = 2
"""Tensors of a hop: hidden states, residuals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """An engine's stages."""

    count: int = 1
    hop_s: float = 0.0
    """Of a batch, before its bytes."""
    token_s: float = 0.0
    """Of a hop, per token."""

    def batches(self, sequences: int, tokens: int, budget: int) -> int:
        """Into how many batches so many tokens fall that are under way together."""
        return min(self.count, max(sequences, ceil(tokens / budget)))

    def hops_s(self, tokens: int) -> float:
        """A batch's way through all stages."""
        return (self.count - 1) * (self.hop_s + tokens * self.token_s)


def stages_of(decoder: Decoder, node: NodeSpec, settings: EngineSettings) -> Stages:
    """Of an engine on nodes like this one; over NICs where one does not hold it."""
    gpu, count = node.gpu, settings.pipeline_parallel_size
    assert gpu is not None, f"an engine on {node.name}, which has no GPU"
    if count == 1:
        return Stages()
    pcie = node.gpu_fabric in (None, "pcie")
    rate = gpu.pcie_bytes_per_s if pcie else gpu.scale_up_bytes_per_s
    if settings.gpus > node.gpu_count:
        near = ceil(node.nic_count * settings.tensor_parallel_size / node.gpu_count)
        rate = min(rate, near * node.nic.bytes_per_s / settings.tensor_parallel_size)
    sliced = SENT * decoder.hidden * BF16_BYTES / settings.tensor_parallel_size
    return Stages(count=count, hop_s=HOP_S, token_s=sliced / rate)
