"""Random situations for the autoscaler's scheduler, by seed; Ray's own answers are recorded."""

from __future__ import annotations

import random

from raysim.raycore.autoscaler import AutoscalerConfig, NodeTypeConfig
from raysim.raycore.autoscaler.bin_packing import Availability, Node
from raysim.raycore.autoscaler.scheduler import schedule
from raysim.raycore.protocol import (
    Bundle,
    ClusterResourceState,
    PlacementGroupTableData,
    ResourceDemand,
)
from raysim.raycore.resources import ResourceSet

Shape = dict[str, float]
TYPES: dict[str, Shape] = {
    "head": {"CPU": 2},
    "small": {"CPU": 4, "memory": 8},
    "big": {"CPU": 16, "memory": 64},
    "gpu": {"CPU": 8, "GPU": 2, "memory": 32},
}
SHAPES: list[Shape] = [
    {"CPU": 1}, {"CPU": 2}, {"CPU": 4}, {"CPU": 1, "memory": 4}, {"GPU": 1}, {"CPU": 2, "GPU": 1},
    {"memory": 8}, {"CPU": 12}, {"CPU": 64}, {"CPU": 0.5},
]  # fmt: skip


class Case:
    """One situation, for both sides."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.limits = {t: (0, rng.randint(0, 6)) for t in TYPES}
        self.limits["small"] = (rng.randint(0, 1), rng.randint(1, 6))
        self.limits["head"] = (0, 0)
        self.max_workers = rng.choice([None, 3, 8])
        self.nodes: list[tuple[str, Shape, int, bool]] = [("head", {"CPU": 0}, 0, True)]
        self.configs: list[str] = ["new"]
        """What each node was launched with; those launched with something else are outdated."""
        for name in ("small", "big", "gpu"):
            for _ in range(rng.randint(0, min(2, self.limits[name][1]))):
                free = {k: float(rng.randint(0, int(v))) for k, v in TYPES[name].items()}
                if rng.random() < 0.3:
                    free = dict(TYPES[name])
                idle_s = rng.choice([0, 30, 61, 90 + len(self.nodes)])
                self.nodes.append((name, free, idle_s, rng.random() < 0.8))
                self.configs.append("new")
        self.demand = [(s, rng.randint(1, 9)) for s in rng.sample(SHAPES, rng.randint(0, 4))]
        self.gangs = [
            (rng.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
             [rng.choice(SHAPES[:6]) for _ in range(rng.randint(1, 4))])
            for _ in range(rng.randint(0, 2))
        ]  # fmt: skip
        self.constraint = [rng.choice(SHAPES[:6]) for _ in range(rng.choice([0, 0, 3, 6]))]
        self.checked = seed % 3 == 0
        if self.checked:
            self.configs[1:] = [rng.choice(["new", "new", "old"]) for _ in self.nodes[1:]]
        self.recoverable = {t: rng.choice([0.0, 0.3, 1.0]) for t in TYPES if rng.random() < 0.4}
        self.relative = {t: rng.choice([0.0, 0.2, 0.5]) for t in self.recoverable}
        self.priorities = {t: rng.choice([0, 0, 0, 1]) for t in TYPES}

    def ours(self) -> tuple[dict[str, int], list[int]]:
        types = tuple(
            NodeTypeConfig(
                name=t,
                resources=r,
                min_workers=self.limits[t][0],
                max_workers=self.limits[t][1],
                priority=self.priorities[t],
                launch_config="new",
            )
            for t, r in TYPES.items()
        )
        nodes = []
        for i, (name, free, idle_s, running) in enumerate(self.nodes):
            total = ResourceSet.of(TYPES[name]).units
            available = ResourceSet.of(free).units if running else total
            nodes.append(
                Node.new(
                    name, total, {k: available.get(k, 0) for k in total}, {}, instance=i + 1,
                    node_id=i if running else -1, is_head=i == 0,
                    idle_ns=int(idle_s * 1e9) if running else 0,
                    launch_config=self.configs[i] if running else "",  # unknown of those pending
                    priority=self.priorities[name],
                )
            )  # fmt: skip
        state = ClusterResourceState(
            (), (),
            tuple(ResourceDemand(ResourceSet.of(s), n) for s, n in self.demand),
            tuple(
                PlacementGroupTableData(
                    g, "", "PENDING", strategy,
                    tuple(Bundle(g, i, ResourceSet.of(b)) for i, b in enumerate(bundles)),
                    (-1,) * len(bundles),
                )
                for g, (strategy, bundles) in enumerate(self.gangs)
            ),
            tuple(ResourceSet.of(s) for s in self.constraint),
        )  # fmt: skip
        decision = schedule(
            AutoscalerConfig(
                node_types=types, max_workers=self.max_workers,
                disable_launch_config_check=not self.checked,
            ),
            state, nodes, idle_timeout_s=60, head_type="head",
            availability=Availability(self.recoverable, self.relative),
        )  # fmt: skip
        return decision.launch, sorted(n.instance for n in decision.terminate)
