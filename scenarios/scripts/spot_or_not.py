"""From which rate of reclaimed nodes on is spot dearer than on-demand, and how often to save then.

    python scenarios/scripts/spot_or_not.py

Ray Train on 8 nodes that cost 40 % when the cloud may take them back. The step is given by
numbers: take it from ``raysim run`` of the training job.
"""

from __future__ import annotations

from pathlib import Path

import raysim

CLUSTER = Path(__file__).parents[1] / "llama3_70b_spot" / "cluster.yaml"
USD_PER_HOUR = 27.45
SPOT_FRAC = 0.4
JOB = {
    "name": "spot-or-not",
    "cluster": {"from": str(CLUSTER)},
    "jobs": [{"trainer": {
        "loop": {
            "steps": 1000, "step": "30s", "fixed_batch": True, "set_up": "3min",
            "checkpoint": {"size": "840GB", "every_steps": 60, "storage": "s3"},
        },
        "num_workers": [32, 64],
        "failure_config": {"max_failures": -1},
        "num_to_keep": 2,
    }}],
}  # fmt: skip


def market(per_hour: float) -> dict[str, object]:
    """Price and rate of nodes that are taken back so often; 0: on-demand."""
    if not per_hour:
        return {"name": "on-demand", "cluster.prices": {"gpu": f"{USD_PER_HOUR} usd/h"}}
    return {
        "name": f"spot, {per_hour:.0%} an hour",
        "cluster.prices": {"gpu": f"{USD_PER_HOUR * SPOT_FRAC} usd/h"},
        "spot": {"gpu": {"per_hour": per_hour}},
    }


def main() -> None:
    """Print hours and dollars of each market and interval between checkpoints."""
    table = raysim.sweep(
        raysim.load(JOB),
        {
            "together.market": [market(rate) for rate in (0, 0.01, 0.05, 0.2)],
            "trainer.loop.checkpoint.every_steps": [10, 30, 60],
        },
    )
    table["market"] = [choice["name"] for choice in table["together.market"]]
    table["minutes"] = table["trainer.loop.checkpoint.every_steps"] * 30 / 60
    print(f"{'market':20}{'save every':>12}{'hours':>8}{'usd':>9}")
    for market_, rows in table.groupby("market", sort=False):
        ran = rows[rows.status == "ok"]
        if ran.empty:
            print(f"{market_:20}  {rows.why.iloc[0]}")
            continue
        best = ran.loc[ran.usd.idxmin()]
        print(f"{market_:20}{best.minutes:8.0f} min{best.seconds / 3600:8.1f}{best.usd:9,.0f}")


if __name__ == "__main__":
    main()
