"""Ray Tune's scalability guide, row by row.

Trials sleep between results; what is measured is the driver. The runs are of Ray 1, whose trials
bundled up to 1000 results in a call (``TUNE_RESULT_BUFFER_LENGTH``) and reused their actors. Rows
marked calibration fixed ``raylibs.tune.defaults.TuneCosts``; types of machines are taken by their
number of CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.raycore.cluster import Cluster
from raysim.raycore.scripts import Script, drive
from raysim.raycore.state_log import StateLog
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.defaults import RAY_1
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.program import Step, TrialProgram
from raysim.raylibs.tune.sample import uniform
from raysim.validate.points import Point
from raysim.validate.published import rows

FAMILY = "ray_tune/tune"
LONGEST = "60h"


def ray_tune_points(validation: Path) -> Iterator[Point]:
    """Every row of the data, those left out with the reason that stands there."""
    for row in rows(validation, "ray_tune.json"):
        measured: dict[str, Any] = {"unit": row["unit"], "measured": row["value"]}
        if row["use"] == "left_out":
            measured |= {"role": "validation", "left_out": row["why"]}
        else:
            measured |= {"role": row["use"], "predicted": play(row).took_s}
        yield Point(family=FAMILY, name=row["id"], **measured)


def play(row: Mapping[str, Any]) -> TuneResult:
    """One row of the guide, as ``timed_tune_run`` of Ray's release tests makes it."""
    node = catalog.node(row["machine"])
    groups = [NodeGroup(name="head", node=node, count=1, head=True)]
    if row["nodes"] > 1:
        groups.append(NodeGroup(name="worker", node=node, count=row["nodes"] - 1))
    spec = ClusterSpec(groups=tuple(groups), fabric=FabricSpec(kind="star"))
    cluster = Cluster(Simulation(), spec, log=StateLog(enabled=False))
    ended: list[TuneResult] = []

    def main(process: Any) -> Script:
        controller = TuneController(
            process, sleeping(row), cluster.sim.rng, cluster_cpus=node.vcpus * row["nodes"]
        )
        return (yield from controller.run())

    cluster.driver(lambda d: drive(d, main, ended.append))
    cluster.sim.run(LONGEST)
    return ended[0]


def sleeping(row: Mapping[str, Any]) -> Experiment:
    """Reports, sleeps, reports again; the first report comes at once."""
    sleep_s = 1 / row["results_per_s"]
    iterations = int(row["trial_s"] / sleep_s)
    every = int(row.get("checkpoint_every_s", 0) / sleep_s)

    def steps(_config: object, _rng: object, start: int) -> Iterator[Step]:
        for i in range(start, iterations):
            saves = every and i % every == 0
            yield Step(
                duration_s=sleep_s if i else 0.0,
                checkpoint_bytes=row["checkpoint_bytes"] if saves else None,
            )

    return Experiment(
        trainable=TrialProgram(steps=steps, end_s=sleep_s),
        param_space={"score": uniform(0.0, 1.0)},
        num_samples=row["trials"],
        reuse_actors=True,
        loggers=row["loggers"],
        defaults=RAY_1,
    )
