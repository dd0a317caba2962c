"""How many CPU nodes feed eight A100 that train a ViT on decoded and augmented images.

python scenarios/scripts/how_many_cpu_nodes.py
"""

from __future__ import annotations

from pathlib import Path

import raysim

SCENARIO = Path(__file__).parents[1] / "databound_vit"


def main() -> None:
    """Print seconds and dollars of 100,000 images by how many there are; the knee is the answer."""
    scenario = raysim.load(SCENARIO, {"data.source.rows": 100_000})
    table = raysim.sweep(scenario, {"cluster.cpu.replicas": [4, 8, 16, 32]})
    print(f"{'CPU nodes':>9}{'seconds':>9}{'usd':>7}")
    for number, row in table.iterrows():
        mark = "  <- cheapest" if number == table.usd.idxmin() else ""
        print(f"{row['cluster.cpu.replicas']:9}{row.seconds:9.1f}{row.usd:7.3f}{mark}")


if __name__ == "__main__":
    main()
