"""The ``links`` part of a summary: what the links of the simulated ranks carried in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysim.training.link_use import LinkUse


def links(uses: Sequence[LinkUse]) -> list[dict[str, Any]]:
    """Capacity, bytes, mean and highest share of capacity of each link, the busiest first."""
    rows = [
        {
            "link": use.link.name,
            "bytes_per_s": use.link.bytes_per_s,
            "bytes": round(use.carried_bytes),
            "mean_frac": use.mean_frac,
            "peak_frac": use.peak_frac,
        }
        for use in uses
    ]
    return sorted(rows, key=lambda row: -row["mean_frac"])
