"""From a RayJob applied to its entrypoint submitted: pods, probes and the operator's rounds.

Real counterpart: ``rayjob_controller.go`` and ``raycluster_controller.go`` of kuberay, and the
kubelet's readiness probes. The head's pod and the workers' start together; a worker's init
container waits for the GCS before ``ray start``. A pod is ready at the first probe that finds Ray:
10 s after its container has started, and every 5 s from then on. The operator sees in its next
round, 3 s apart, that all are ready; in K8sJobMode a submitter's pod must then start.

Not modelled: operators that are behind with their work queue, API servers that throttle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from raysim.kernel.rng import Streams
from raysim.raycore.cloud import COLD_CPU_POD, WARM_POD, Delay, NodeStart

READINESS_INITIAL_S = 10.0
READINESS_PERIOD_S = 5.0
"""``DefaultReadinessProbeInitialDelaySeconds`` and ``...PeriodSeconds``."""
REQUEUE_S = 3.0
"""``RayJobDefaultRequeueDuration``."""
CLIENT_S = Delay.between(1, 3)
"""``ray job submit`` in the submitter's pod: an interpreter that imports ray. Assumed."""


def until_submitted_s(
    name: str,
    rng: Streams,
    pods: Sequence[str],
    starts: Mapping[str, NodeStart],
    *,
    mode: str,
    own_cluster: bool,
) -> float:
    """Seconds from ``kubectl apply`` to the job's submission.

    Parameters
    ----------
    name
        Of the RayJob; its delays come from the streams ``rayjob/<name>/...``.
    rng
        The run's streams.
    pods
        Group of every pod; the head's first.
    starts
        Delays by group.
    mode
        ``submissionMode``.
    own_cluster
        Whether the cluster is made for it; else it is there.
    """

    def draw(what: str, delay: Delay) -> float:
        drawn = rng(f"rayjob/{name}/{what}").standard_normal()
        return delay.median_s * math.exp(delay.sigma * drawn)

    ready_s = 0.0
    if own_cluster:
        head_up_s = 0.0
        for index, group in enumerate(pods):
            its = starts.get(group, COLD_CPU_POD)
            started_s = sum(
                draw(phase, getattr(its, phase)) for phase in ("request", "provision", "image_pull")
            )
            up_s = max(started_s, head_up_s) + draw("ray_start", its.ray_start)
            if not index:
                head_up_s = up_s
            ready_s = max(ready_s, started_s + probed_s(up_s - started_s))
    seen_s = math.ceil(ready_s / REQUEUE_S) * REQUEUE_S
    if mode == "K8sJobMode":
        seen_s += sum(
            draw(f"submitter/{phase}", getattr(WARM_POD, phase))
            for phase in ("provision", "image_pull")
        )
        seen_s += draw("submitter/client", CLIENT_S)
    return seen_s


def probed_s(up_s: float) -> float:
    """When a probe finds a container ready that is ``up_s`` after its start."""
    late = max(0.0, up_s - READINESS_INITIAL_S)
    return READINESS_INITIAL_S + math.ceil(late / READINESS_PERIOD_S) * READINESS_PERIOD_S
