"""Runs of Ray Data whose times were published, each a scenario with a ``data`` job.

Three families, with two, one and two constants that rows marked calibration fixed: ``imgcls``, CPU
tasks that feed GPU actors, by CPUs per GPU; ``bulk_ingest``, Ray 2.0's bulk execution and the cliff
of a dataset that is larger than the store; ``cloudsort``, Exoshuffle on Ray Core.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware.cluster import ClusterSpec
from raysim.run import run
from raysim.scenario.load import from_mapping
from raysim.validate.points import Point
from raysim.validate.published import row_points


def ray_data_points(validation: Path) -> Iterator[Point]:
    """Every row of the data, those left out with the reason that stands there."""
    return row_points(validation, "ray_data.json", play)


def play(row: Mapping[str, Any]) -> float:
    """Seconds of the whole job; or of its consumers, once data is there (``consumed_s``)."""
    metrics = _metrics(json.dumps(row["scenario"]), json.dumps(row.get("disk")))
    if row["metric"] == "consumed_s":
        return metrics["data_s"] - metrics["prepared_s"]
    return metrics[row["metric"]]


@cache
def _metrics(scenario_json: str, disk_json: str) -> Mapping[str, float]:
    """Of a run, which several rows may be about."""
    scenario, disk = from_mapping(json.loads(scenario_json)), json.loads(disk_json)
    if disk is not None:
        scenario = replace(scenario, cluster=_with_disk(scenario.cluster, disk))
    metrics: Mapping[str, float] = run(scenario, record=False).summary["libraries"][0]["metrics"]
    return metrics


def _with_disk(cluster: ClusterSpec, said: Mapping[str, Any]) -> ClusterSpec:
    """The same nodes with a volume of other rates."""
    given = {name: value for name, value in said.items() if name != "source"}
    groups = []
    for group in cluster.groups:
        disks = tuple((replace(disk, **given), count) for disk, count in group.node.disks)
        groups.append(replace(group, node=replace(group.node, disks=disks)))
    return replace(cluster, groups=tuple(groups))
