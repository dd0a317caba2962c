"""Which nodes, and how many, train Llama 3 8B on 100 B tokens within a week for the least money.

    python scenarios/scripts/cluster_for_a_week.py

Four kinds of nodes with eight GPUs, at the catalog's prices; layouts are ranked by what the run
costs if it is as much slower than predicted as one run in ten is.
"""

from __future__ import annotations

from pathlib import Path

import raysim

MODEL = Path(__file__).parents[1] / "llama3_8b_zero3" / "config.json"
JOB = {
    "name": "cluster-for-a-week",
    "cluster": {"node": "hgx-h100-8", "nodes": 4},
    "model": {"from": str(MODEL)},
    "jobs": [{"train": {
        "deepspeed": {
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
            "zero_optimization": {"stage": 3},
        },
        "seq_len": 8192, "global_batch_tokens": "2Mi", "tokens": "100G",
    }}],
}  # fmt: skip
KINDS = ("hgx-h100-8", "hgx-h200-8", "hgx-b200-8", "dgx-a100-80-8")
SPACE = {
    "cluster.nodes": [2, 4, 8, 16], "train.micro_batch": [1, 2],
    "train.activation_checkpointing": ["none", "full"],
}  # fmt: skip
LIMITS = ["days <= 7", "gpu_mem_peak <= 92%"]


def main() -> None:
    """Print the best layout of each kind of node."""
    print(
        f"{'node':14}{'nodes':>6}{'micro':>6}  {'recompute':10}{'days':>6}{'usd':>9}  nine of ten"
    )
    for kind in KINDS:
        job = raysim.load(JOB, {"cluster.node": kind})
        plan = raysim.plan(job, SPACE, minimize="usd", quantile=0.9, subject_to=LIMITS).plan
        if plan.best is None:
            print(f"{kind:14}  none: " + ", ".join(f"{r.trials} {r.what}" for r in plan.reasons))
            continue
        choice, found, sure = plan.best.choice, plan.best.metrics, plan.certainty
        spread = "" if sure is None else f"${sure.low:,.0f} to ${sure.high:,.0f}"
        print(
            f"{kind:14}{choice['cluster.nodes']:6}{choice['train.micro_batch']:6}"
            f"  {choice['train.activation_checkpointing']:10}{found['days']:6.2f}"
            f"{found['usd']:9,.0f}  {spread}"
        )


if __name__ == "__main__":
    main()
