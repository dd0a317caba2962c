"""What a run costs: GPU-hours, dollars, dollars per million tokens."""

from __future__ import annotations

from typing import Any


def cost(
    *, gpus: int, seconds: float, usd_per_hour: float | None, tokens: float | None = None
) -> dict[str, Any]:
    """The ``cost`` part of the summary.

    Parameters
    ----------
    gpus
        GPUs rented, used or not.
    seconds
        Wall time of the whole run.
    usd_per_hour
        Price of all nodes together, head and CPU nodes too; None leaves the dollars out.
    tokens
        Tokens trained on, where the samples are tokens.
    """
    hours = seconds / 3600
    usd = None if usd_per_hour is None else usd_per_hour * hours
    return {
        "gpu_hours": gpus * hours,
        "usd": usd,
        "usd_per_gpu_hour": None if usd_per_hour is None or not gpus else usd_per_hour / gpus,
        "usd_per_million_tokens": None if usd is None or not tokens else usd / tokens * 1e6,
    }
