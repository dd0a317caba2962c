"""What makes a Serve application slow, late or wasteful: traps of its settings and of a run.

Real counterparts: ``serve/config.py``'s semantics, the autoscaling guide, and issues of
ray-project/ray: #62004, #18923 (delays shorter than the window), #26455 (late decisions).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raysim.raylibs.nodes import Nodes, lacking
from raysim.raylibs.serve.config import ApplicationConfig, AutoscalingConfig, DeploymentConfig
from raysim.raylibs.serve.usage import BUSY, DeploymentUse
from raysim.raylibs.warnings import PlannerWarning

LONG_WAIT_S = 1.0
FULL = 0.85
"""Share of slots from which on requests wait for one."""


def of_settings(app: ApplicationConfig, cluster: Mapping[str, float]) -> Iterator[PlannerWarning]:
    """Of the configuration alone; ``cluster``: resources of all nodes together."""
    for config in app.deployments:
        yield from _batch(config)
        if config.autoscaling is not None:
            yield from _scaling(config, config.autoscaling)
            yield from _room(config, config.autoscaling, cluster)


def of_run(uses: tuple[DeploymentUse, ...], proxy: float) -> Iterator[PlannerWarning]:
    """Of what happened."""
    if proxy > BUSY:
        yield PlannerWarning(
            code="serve-proxy-bound",
            cause=f"A proxy's one thread is busy {proxy:.0%} of the time.",
            fix="Set RAY_SERVE_ENABLE_HA_PROXY=1, or spread clients over proxies of more nodes.",
        )
    for use in uses:
        config, auto = use.config, use.config.autoscaling
        if auto is not None and use.wait_at_max_s > LONG_WAIT_S:
            yield PlannerWarning(
                code="serve-at-max-replicas",
                cause=f"{config.name} stands at max_replicas={auto.max_replicas}; calls that come"
                f" then wait up to {use.wait_at_max_s:.1f} s.",
                fix="Raise max_replicas, or refuse some by max_queued_requests.",
            )
        elif use.wait_max_s > LONG_WAIT_S and config.max_queued_requests < 0:
            yield PlannerWarning(
                code="serve-unbounded-queue",
                cause=f"Requests wait up to {use.wait_max_s:.1f} s for a replica of {config.name}: "
                "its queue has no bound.",
                fix="Set max_queued_requests (clients get 503), or raise max_ongoing_requests.",
            )
        if use.slots_used > FULL and use.busy < BUSY - 0.3:
            yield PlannerWarning(
                code="serve-slots-bound",
                cause=f"{use.slots_used:.0%} of the {config.max_ongoing_requests} slots of "
                f"{config.name}'s replicas are taken while their threads are busy {use.busy:.0%}.",
                fix=f"Raise max_ongoing_requests from {config.max_ongoing_requests}.",
            )


def _batch(config: DeploymentConfig) -> Iterator[PlannerWarning]:
    batch = config.batch
    if batch is None:
        return
    needed = batch.max_batch_size * batch.max_concurrent_batches
    if needed > config.max_ongoing_requests:
        yield PlannerWarning(
            code="serve-batch-never-full",
            cause=f"{config.name} batches up to {batch.max_batch_size} requests but takes "
            f"max_ongoing_requests={config.max_ongoing_requests} at once: batches never fill, and "
            f"each waits {batch.batch_wait_timeout_s * 1e3:g} ms.",
            fix=f"Set max_ongoing_requests to {needed} or more.",
        )


def _scaling(config: DeploymentConfig, auto: AutoscalingConfig) -> Iterator[PlannerWarning]:
    shortest = min(auto.upscale_delay_s, auto.downscale_delay_s)
    if auto.look_back_period_s > shortest:
        yield PlannerWarning(
            code="serve-lookback-over-delay",
            cause=f"{config.name} decides after {shortest:g} s on a mean over "
            f"{auto.look_back_period_s:g} s: it acts on load that is over, and swings.",
            fix="Set look_back_period_s to the shorter of the two delays or less.",
        )
    if auto.metrics_interval_s > auto.look_back_period_s:
        yield PlannerWarning(
            code="serve-interval-over-lookback",
            cause=f"Handles of {config.name} report every {auto.metrics_interval_s:g} s a window "
            f"of {auto.look_back_period_s:g} s: load between is not seen.",
            fix="Set metrics_interval_s to look_back_period_s or less.",
        )
    if config.constructor_s > auto.upscale_delay_s:
        yield PlannerWarning(
            code="serve-slow-start",
            cause=f"A replica of {config.name} takes {config.constructor_s:g} s to start, longer "
            f"than the {auto.upscale_delay_s:g} s before it is asked for: bursts wait for both.",
            fix="Keep spare replicas (min_replicas), lower target_ongoing_requests, or make the "
            "constructor faster.",
        )
    if auto.target_ongoing_requests > config.max_ongoing_requests:
        yield PlannerWarning(
            code="serve-target-over-slots",
            cause=f"{config.name} aims at {auto.target_ongoing_requests:g} ongoing requests per "
            f"replica, which takes {config.max_ongoing_requests}: only queues make it grow.",
            fix=f"Set target_ongoing_requests below {config.max_ongoing_requests}.",
        )


def _room(
    config: DeploymentConfig, auto: AutoscalingConfig, cluster: Mapping[str, float]
) -> Iterator[PlannerWarning]:
    asked = config.placement_group_bundles or (config.resources,)
    total: dict[str, float] = {}
    for bundle in asked:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    fits = min((int(cluster.get(k, 0.0) / v + 1e-9) for k, v in total.items() if v), default=None)
    if fits is not None and fits < auto.max_replicas:
        yield PlannerWarning(
            code="serve-no-room-for-max",
            cause=f"max_replicas={auto.max_replicas} of {config.name}, and {fits} fit the cluster "
            "if it is alone on it.",
            fix="Add nodes, or let an autoscaler do so; Serve asks and waits.",
        )


def never_starts(config: DeploymentConfig, nodes: Nodes) -> str:
    """Why no replica of a deployment finds room, and the way out; empty if its parts may.

    Parameters
    ----------
    config
        Asks for ``ray_actor_options`` or bundles.
    nodes
        Of the cluster at its largest.
    """
    for bundle in config.placement_group_bundles or (config.resources,):
        asked = {name: amount for name, amount in bundle.items() if amount}
        missing = lacking(asked, nodes)
        each = " and ".join(f"{amount:g} {name}" for name, amount in asked.items())
        if missing:
            return (
                f"A replica of {config.name} asks for {each}, and no node has any "
                f"{' or '.join(missing)}: say machines that have it (--cluster FILE, with "
                "`nodes: 1` and `node: NAME`, one of `raysim catalog nodes`)."
            )
        if not any(all(n.get(k, 0.0) + 1e-9 >= v for k, v in asked.items()) for n in nodes):
            return (
                f"A replica of {config.name} asks for {each} on one node, more than any has: ask "
                "for less (ray_actor_options), or say larger machines (--cluster FILE)."
            )
    return ""
