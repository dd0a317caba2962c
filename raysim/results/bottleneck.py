"""Which part of the step binds, in one sentence.

The step's breakdown is a partition of wall time on the slowest rank, so the largest part is what a
faster component would shorten first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = {
    "compute": "GPU kernels",
    "recompute": "recomputed activations",
    "exposed_collectives": "collectives",
    "pipeline_transfers": "sends and receives between stages",
    "bubble": "the pipeline bubble",
    "offload": "copies and the CPU optimizer",
    "launch": "Python and kernel launches on the host",
    "data_wait": "waiting for data",
    "optimizer": "the optimizer step",
}
_REMEDY = {
    "recompute": "less activation checkpointing would shorten it",
    "pipeline_transfers": "more bandwidth or fewer stages would shorten it",
    "exposed_collectives": "more bandwidth or more overlap would shorten it",
    "bubble": "more micro-batches per step or fewer stages would shorten it",
    "offload": "a faster PCIe link, more cores or less offload would shorten it",
    "launch": "a larger micro-batch, torch.compile or CUDA graphs would shorten it",
    "data_wait": "more loader workers or cheaper samples would shorten it",
}
_WORTH_SAYING = 0.005


def bound_by(
    breakdown: Sequence[Mapping[str, Any]], *, hidden_collectives_frac: float | None = None
) -> dict[str, Any]:
    """The ``bound_by`` part of the summary.

    Parameters
    ----------
    breakdown
        Rows ``{"key", "name", "seconds", "frac"}`` that add up to the step.
    hidden_collectives_frac
        Share of collective time that overlaps compute; None or 0 where there are no collectives.
    """
    if not breakdown:
        return {"what": "nothing", "text": "Nothing was simulated.", "frac": 0.0}
    top = max(breakdown, key=lambda row: row["frac"])
    what = _WORDS.get(top["key"], top["name"])
    text = f"{what[0].upper()}{what[1:]}, {top['frac'] * 100:.0f} % of the step"
    remedy = _REMEDY.get(top["key"])
    if remedy:
        text += f"; {remedy}"
    elif hidden_collectives_frac:
        text += f"; collectives are {hidden_collectives_frac * 100:.0f} % hidden behind them"
    second = sorted(breakdown, key=lambda row: -row["frac"])[1:2]
    if second and second[0]["frac"] > max(_WORTH_SAYING, 0.5 * top["frac"]):
        other = _WORDS.get(second[0]["key"], second[0]["name"])
        text += f"; then {other}, {second[0]['frac'] * 100:.0f} %"
    return {"what": what, "text": text + ".", "frac": top["frac"]}
