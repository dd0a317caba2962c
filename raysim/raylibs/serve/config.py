"""What a Serve application is asked to be: deployments, their options, what a request costs there.

Real counterpart: ``serve/config.py`` (``DeploymentConfig``, ``AutoscalingConfig``), the options of
``@serve.deployment``, ``@serve.batch`` and ``@serve.multiplexed`` (ray 2.60). ``Work`` stands for
the user's method, as numbers.

Not modelled: custom request routers, policies of a whole application, ``target_capacity``,
``max_replicas_per_node``, gang scheduling, deployment actors, surge rollouts, ``user_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from raysim.raylibs.serve.defaults import RAY_2_60

Aggregation = Literal["mean", "max", "min"]
RouterKind = Literal["power_of_two", "least_connections", "random"]
"""``least_connections`` is HAProxy's; ``random`` a comparison for studies, not one of Ray's."""


class Situation(NamedTuple):
    """What a policy of one's own is asked by."""

    now_s: float
    running: tuple[str, ...]
    """Replicas that run, by id."""
    target: int
    total_requests: float
    """Queued and running, over the look-back."""
    queued_requests: float
    scaled_up_s: float | None
    """When the target last grew; None: never."""
    scaled_down_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingConfig:
    """``serve.config.AutoscalingConfig``."""

    min_replicas: int = 1
    max_replicas: int = 1
    initial_replicas: int | None = None
    target_ongoing_requests: float = RAY_2_60.target_ongoing_requests
    metrics_interval_s: float = RAY_2_60.metrics_interval_s
    look_back_period_s: float = RAY_2_60.look_back_period_s
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    upscale_delay_s: float = RAY_2_60.upscale_delay_s
    downscale_delay_s: float = RAY_2_60.downscale_delay_s
    downscale_to_zero_delay_s: float | None = None
    aggregation_function: Aggregation = "mean"
    policy: Callable[[Situation], float] | None = None
    """Says how many replicas are wanted, before factors, delays and bounds; None: Ray's own."""

    def copy(self, *, update: Mapping[str, Any] | None = None) -> AutoscalingConfig:
        """Another one with some fields changed: Ray's is a model of pydantic."""
        return replace(self, **(update or {}))

    model_copy = copy

    @property
    def record_interval_s(self) -> float:
        """How often a handle samples what it has queued and running (``router.py``)."""
        factor = RAY_2_60.record_interval_factor
        return min(self.look_back_period_s * factor, self.metrics_interval_s)

    def bound(self, replicas: int) -> int:
        """Between ``min_replicas`` and ``max_replicas``."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """``@serve.batch``: a call of the method takes the time of its batch."""

    max_batch_size: int = RAY_2_60.max_batch_size
    batch_wait_timeout_s: float = RAY_2_60.batch_wait_timeout_s
    max_concurrent_batches: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplexConfig:
    """``@serve.multiplexed``: models are loaded when first asked for, the oldest used goes."""

    max_num_models_per_replica: int = RAY_2_60.max_models_per_replica
    load_s: float | None = 1.0
    """None: the user's own code loads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request in one replica, as the user's method takes it."""

    python_s: float = 0.0
    """Seconds of Python that holds the interpreter: of the loop that also moves requests."""
    busy_s: float = 0.0
    """Seconds one at a time beside that loop: the replica's GPU, or a library that lets go."""
    wait_s: float = 0.0
    """Seconds that overlap with other requests': I/O."""
    per_item_busy_s: float = 0.0
    """With batches: for each request of one, beside ``busy_s`` for the batch."""
    per_item_python_s: float = 0.0
    """Likewise, of Python: a thread beside the loop has the lock once a turn of the loop."""
    cv: float = 0.0
    """Coefficient of variation of all of them (gamma distributed); 0: always the same."""
    calls: tuple[tuple[str, ...], ...] = ()
    """Deployments called through handles: groups one after another, within a group at once."""
    chunks: int = 0
    """Of a streaming response; 0: a response in one piece."""
    chunk_interval_s: float = 0.0
    """Between two of them, as the method makes them."""
    fails_frac: float = 0.0
    """Share of requests whose method raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentConfig:
    """``@serve.deployment`` and what it decorates."""

    name: str
    num_replicas: int = 1
    max_ongoing_requests: int = RAY_2_60.max_ongoing_requests
    max_queued_requests: int = RAY_2_60.max_queued_requests
    autoscaling: AutoscalingConfig | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    """``ray_actor_options``: Serve's replicas take one CPU if nothing is said."""
    placement_group_bundles: tuple[Mapping[str, float], ...] = ()
    """The replica is in the first, what it starts in the others."""
    placement_group_strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = "PACK"
    graceful_shutdown_timeout_s: float = RAY_2_60.graceful_shutdown_timeout_s
    graceful_shutdown_wait_loop_s: float = RAY_2_60.graceful_shutdown_wait_loop_s
    health_check_period_s: float = RAY_2_60.health_check_period_s
    max_constructor_retry_count: int = RAY_2_60.max_constructor_retry_count
    rolling_update_frac: float = RAY_2_60.rolling_update_frac
    request_router: RouterKind = "power_of_two"
    work: Work = field(default_factory=Work)
    batch: BatchConfig | None = None
    multiplex: MultiplexConfig | None = None
    constructor_s: float = 0.0
    """``__init__`` and ``reconfigure``: imports, models to load."""
    constructor_fails: int = 0
    """So many first constructors raise."""
    version: str = ""
    """Of the code: another one replaces the replicas."""

    @property
    def initial_replicas(self) -> int:
        """How many are started when it is deployed for the first time."""
        auto = self.autoscaling
        if auto is None:
            return self.num_replicas
        first = auto.min_replicas if auto.initial_replicas is None else auto.initial_replicas
        return auto.bound(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationConfig:
    """An application: the ingress deployment, and all that it reaches through handles."""

    name: str = "default"
    ingress: str
    deployments: tuple[DeploymentConfig, ...]

    def deployment(self, name: str) -> DeploymentConfig:
        """The one of this name.

        Raises
        ------
        KeyError
            There is none.
        """
        return {d.name: d for d in self.deployments}[name]
