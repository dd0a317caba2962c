"""How vLLM lays out experts of four bits (MXFP4), and how many rows their kernels pass over.

Real counterpart: ``Mxfp4MoEMethod`` and ``fused_marlin_moe``. Weights are padded when they are
loaded: the hidden size to a multiple of 256, by Marlin a rank's width to one of 128, by FlashInfer
(Blackwell) to one of 256. With that gpt-oss-120b is 65.8 GiB by Marlin and 64.5 by Triton; vLLM
logs 65.97 and 64.38 on one H100 (its issues 23278 and 33155), and 13.72 of gpt-oss-20b by Marlin,
which is 13.65 here. A kernel works on blocks of rows of one expert each, the last of them partly
empty.

Not modelled: what Triton's padding and blocks cost in time, which are in ``mxfp4_share``.
"""

from __future__ import annotations

import math

import numpy as np

from raysim.hardware.specs import GpuSpec
from raysim.serving.decoder import MXFP4_BYTES, Block, Decoder

MARLIN = ("ampere", "ada")
"""Architectures on which vLLM multiplies four-bit experts by Marlin, not by Triton's kernels."""
MARLIN_2025 = (*MARLIN, "hopper")
"""The same before vLLM brought ``triton_kernels`` along (0.11.1; its pull request 27370)."""
HIDDEN_MULTIPLE = 256
MARLIN_MULTIPLE = 128
FLASHINFER_MULTIPLE = 256
BLOCK_ROWS = (8, 16, 32, 48, 64)
"""Marlin's, of which it takes the first that rows per expert fill to less than ``FULL``."""
FULL = 0.9


def padding(
    decoder: Decoder, block: Block, gpu: GpuSpec, ranks: int, marlin: tuple[str, ...]
) -> float:
    """By how much a routed expert's weights are larger in memory than in the checkpoint.

    Parameters
    ----------
    ranks
        Over which an expert's width is cut.
    marlin
        Architectures on which Marlin is taken.
    """
    if decoder.expert_bytes != MXFP4_BYTES or not block.experts:
        return 1.0
    hidden = block.narrowed or decoder.hidden
    factor = _padded(hidden, HIDDEN_MULTIPLE) / hidden
    width = math.ceil(block.expert_width / ranks)
    if gpu.architecture in marlin:
        factor *= _padded(width, MARLIN_MULTIPLE) / width
    elif gpu.architecture == "blackwell":
        factor *= _padded(width, FLASHINFER_MULTIPLE) / width
    return factor


def _padded(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def marlin_rows(chosen: float, experts: int) -> float:
    """Rows that Marlin's blocks hold when ``chosen`` rows fall on experts evenly by chance.

    An expert gets a number of them after Poisson's law.
    """
    mean = chosen / experts
    size = next((rows for rows in BLOCK_ROWS if mean / rows < FULL), BLOCK_ROWS[-1])
    most = math.ceil(mean + 10.0 * math.sqrt(mean) + 20.0)
    rows = np.arange(1, most + 1)
    shares = np.exp(np.cumsum(np.log(mean / rows)) - mean)
    return float(experts * size * (shares * np.ceil(rows / size)).sum())
