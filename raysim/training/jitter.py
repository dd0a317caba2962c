"""What every launch of a kernel takes longer: a draw for each operation of each rank.

A factor is one of 65,536 equally likely quantiles of a lognormal of mean 1, so a draw is sixteen
random bits and a look-up: the same on every machine, and ten times as fast as drawing normals.
Simplification: no factor lies beyond 4.3 standard deviations.

Each stage draws from a stream of its own, ``kernel/stage-3``: one row for every kernel of its
program, in order, one column for every rank of the stage. So a rank draws the same whether ranks
are played one by one or all together.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from raysim.kernel.rng import Streams
from raysim.perf.jitter import lognormal_parameters

Factors = npt.NDArray[np.float64]
Launches = npt.NDArray[np.uint16]
_QUANTILES = 1 << 16
_PER_WORD = 4
_MOST = np.uint64(2**64 - 1)


@lru_cache(maxsize=8)
def quantiles(cv: float) -> Factors:
    """Equally likely factors with a mean of exactly 1, but for rounding."""
    mu, sigma = lognormal_parameters(cv)
    half = [NormalDist().inv_cdf((i + 0.5) / _QUANTILES) for i in range(_QUANTILES // 2)]
    found: Factors = np.array([exp(mu + sigma * z) for z in (*half, *(-z for z in reversed(half)))])
    mean: np.float64 = found.mean()
    return found / mean


def launches(streams: Streams, stage: int, kernels: int, ranks: int) -> Launches:
    """Which quantile each kernel of a stage's program (rows) is at on each of its ranks."""
    words = -(-ranks // _PER_WORD)
    drawn = streams(f"kernel/stage-{stage}").integers(
        0, _MOST, size=(kernels, words), dtype=np.uint64, endpoint=True
    )
    return drawn.astype("<u8", copy=False).view("<u2")[:, :ranks]
