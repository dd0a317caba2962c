"""Ray Serve's published benchmark, row by row: closed loops on fixed replicas.

Three applications on one node: an echo through two deployments, the same streaming 50 chunks, and a
recommender whose ranker batches on a GPU. Rows marked calibration fixed ``raylibs.serve.costs`` and
the recommender's three numbers below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysim.raylibs.serve.bench import BenchSpec, play
from raysim.raylibs.serve.clients import PythonClient
from raysim.raylibs.serve.config import ApplicationConfig, BatchConfig, DeploymentConfig, Work
from raysim.raylibs.serve.costs import STACKS
from raysim.raylibs.serve.load import ClosedLoop
from raysim.raylibs.serve.records import LoadSummary
from raysim.validate.points import Point
from raysim.validate.published import rows

CHUNKS = 50
REQUESTS = {"echo": 4_000, "stream": 1_000, "dlrm": 4_000}
"""So many are played, beside a fifth more that do not count: the loops settle first."""
CONNECT_S = 1.5e-3
"""On the way to the service and back when the streaming client opens a connection for every
request, in the runs with one replica; from ``stream.1rep.optimized.c1``."""
FEW, PROCESSES = 4, 8
"""Its processes: one for up to so many users, so many for more (``num_workers`` of the results)."""
MANY = 100_000
SYNTH_S = 0.75e-3
"""The recommender's ingress makes 32 rows of lists per request; from ``dlrm.optimized.c400``."""
RANK_S = 6e-3
"""A batch on the L4; from ``dlrm.optimized.c10``."""
RANK_ITEM_S = 0.12e-3
"""Lists of one request to an array and back; from ``dlrm.optimized.c30``."""


def ray_serve_points(validation: Path) -> Iterator[Point]:
    """Requests or chunks per second of every row, left out or not."""
    for row in rows(validation, "ray_serve.json"):
        unit = "chunks/s" if row["load"] == "stream" else "requests/s"
        measured = row.get("chunks_per_s" if row["load"] == "stream" else "requests_per_s")
        if row["use"] == "left_out":
            yield Point(
                family=f"ray_serve/{row['load']}", name=row["id"], role="validation",
                unit=row.get("unit", unit), measured=row.get("value", measured),
                left_out=row["why"],
            )  # fmt: skip
            continue
        assert measured is not None, f"{row['id']}: no value"
        per_request = CHUNKS if row["load"] == "stream" else 1
        yield Point(
            family=f"ray_serve/{row['load']}", name=row["id"], role=row["use"], unit=unit,
            measured=measured,
            predicted=play_row(row, measured / per_request).rps * per_request,
        )  # fmt: skip


def play_row(row: Mapping[str, Any], requests_per_s: float) -> LoadSummary:
    """The benchmark's closed loop once it has settled, for about as many requests as asked."""
    connects = row["load"] == "stream" and row["replicas"] == 1
    lasts_s = REQUESTS[row["load"]] / requests_per_s
    client = PythonClient(processes=1 if row["users"] <= FEW else PROCESSES, connects=connects)
    spec = BenchSpec(
        app=_recommender() if row["load"] == "dlrm" else _echo(row),
        costs=STACKS[row["stack"]],
        load=ClosedLoop(
            users=row["users"], duration_s=1.2 * lasts_s, think_s=CONNECT_S if connects else 0.0
        ),
        python=client if row["load"] == "stream" else None,
    )
    return play(spec).summary(0.2 * lasts_s, 1.2 * lasts_s)


def _echo(row: Mapping[str, Any]) -> ApplicationConfig:
    chunks = CHUNKS if row["load"] == "stream" else 0
    n = row["replicas"]
    return ApplicationConfig(
        ingress="ingress",
        deployments=(
            DeploymentConfig(
                name="ingress", num_replicas=n, max_ongoing_requests=MANY,
                work=Work(calls=(("echo",),)),
            ),
            DeploymentConfig(
                name="echo", num_replicas=n, max_ongoing_requests=MANY, work=Work(chunks=chunks)
            ),
        ),
    )  # fmt: skip


def _recommender() -> ApplicationConfig:
    return ApplicationConfig(
        ingress="ingress",
        deployments=(
            DeploymentConfig(
                name="ingress", num_replicas=2, max_ongoing_requests=1_000,
                work=Work(python_s=SYNTH_S, calls=(("ranker",),)),
            ),
            DeploymentConfig(
                name="ranker", max_ongoing_requests=1_000,
                work=Work(busy_s=RANK_S, per_item_python_s=RANK_ITEM_S),
                batch=BatchConfig(max_batch_size=100, batch_wait_timeout_s=0.05),
            ),
        ),
    )  # fmt: skip
