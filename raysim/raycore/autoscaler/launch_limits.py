"""How many of the nodes that are wanted may be asked for in one round.

Real counterparts: ``Reconciler._compute_to_launch`` of ``autoscaler/v2`` and
``ResourceDemandScheduler._get_concurrent_resource_demand_to_launch`` of ``autoscaler/_private``.

Version 2 counts machines that were asked for and do not exist yet, of all types together; version 1
counts, per type, everything that does not run Ray yet, but lets through at once what
``min_workers``, ``request_resources`` and placement groups need.

Not modelled: version 1 hands nodes to two threads in batches of five (``AUTOSCALER_MAX_LAUNCH_
BATCH``); the calls of one batch take a second or two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

INITIAL_NODES = 5
"""``AUTOSCALER_UPSCALING_INITIAL_NUM_NODES``."""


def v2_launches(
    queued: Mapping[str, int],
    running: Mapping[str, int],
    *,
    requested: int,
    speed: float,
    most_requested: int,
) -> dict[str, int]:
    """Queued instances to request now.

    Parameters
    ----------
    queued, running
        By type; types come in the order of ``queued``.
    requested
        Of all types, asked for and not there yet.
    speed
        ``upscaling_speed``.
    most_requested
        ``AUTOSCALER_MAX_CONCURRENT_LAUNCHES``.
    """
    launches: dict[str, int] = {}
    for node_type, waiting in queued.items():
        wanted = max(1, math.ceil(speed * max(running.get(node_type, 0), 1)))
        launches[node_type] = max(0, min(waiting, wanted, most_requested - requested))
        requested += launches[node_type]
    return launches


def v1_launches(
    wanted: Mapping[str, int],
    running: Mapping[str, int],
    pending: Mapping[str, int],
    urgent: Mapping[str, int],
    *,
    speed: float,
) -> dict[str, int]:
    """Nodes to ask for now; what is left over is worked out anew in the next round.

    Parameters
    ----------
    wanted
        By type: what all the demand needs beyond what runs or is pending.
    running, pending
        By type: with Ray, and asked for without it.
    urgent
        By type, of ``wanted``: what is not for tasks and actors, which nothing limits.
    speed
        ``upscaling_speed``.
    """
    launches: dict[str, int] = {}
    for node_type, n in wanted.items():
        allowed = max(INITIAL_NODES, int(speed * max(running.get(node_type, 0), 1)))
        bound = max(allowed - pending.get(node_type, 0), urgent.get(node_type, 0))
        if bound > 0:
            launches[node_type] = min(bound, n)
    return launches
