"""``ray.autoscaler.sdk``: asking for nodes ahead of need.

Real counterpart: ``python/ray/autoscaler/sdk/sdk.py`` of ray 2.60.
"""

from __future__ import annotations

import sys
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.state import ask_gcs
from raysim.rayapi.unsupported import getattr_of
from raysim.raycore.protocol import RequestClusterResourceConstraint
from raysim.raycore.resources import ResourceSet


@program_call
def request_resources(
    num_cpus: int | None = None,
    bundles: list[dict[str, float]] | None = None,
    bundle_label_selectors: list[dict[str, str]] | None = None,
) -> None:
    """Let the autoscaler bring the cluster to this size."""
    del bundle_label_selectors
    if num_cpus is not None and not isinstance(num_cpus, int):
        raise TypeError("num_cpus should be of type int.")
    if bundles is not None and not isinstance(bundles, list):
        raise TypeError("bundles should be of type List")
    wanted = [{"CPU": 1.0}] * (num_cpus or 0) + list(bundles or [])
    ask_gcs(RequestClusterResourceConstraint(tuple(ResourceSet.of(b) for b in wanted)))


sdk: Any = sys.modules[__name__]
__getattr__ = getattr_of("ray.autoscaler")
