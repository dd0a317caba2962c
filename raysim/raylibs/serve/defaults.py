"""Ray Serve's defaults, in one frozen table: an older version is a ``replace()`` of it.

Real counterpart: ``serve/config.py``, ``serve/batching.py`` and ``serve/_private``:
``constants.py``, ``request_router``, ``proxy_state.py``, ``client.py`` (ray 2.60).

Not here: what a request costs the threads it passes (``costs.py``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDefaults:
    """Timers and limits of one version of Ray Serve; seconds."""

    version: str = "2.60"
    control_loop_interval_s: float = 0.1
    """``CONTROL_LOOP_INTERVAL_S``: the sleep between two steps of the controller."""
    control_step_s: float = 0.002
    """What a step itself takes; assumed, of a small application."""
    max_ongoing_requests: int = 5
    max_queued_requests: int = -1
    graceful_shutdown_wait_loop_s: float = 2.0
    graceful_shutdown_timeout_s: float = 20.0
    health_check_period_s: float = 10.0
    health_check_jitter_frac: float = 0.1
    """``_should_start_new_health_check``: the period times uniform(0.9, 1.1)."""
    unhealthy_threshold: int = 3
    """``REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD``: checks in a row that raise."""
    max_constructor_retry_count: int = 20
    max_per_replica_retry_count: int = 3
    """``MAX_PER_REPLICA_RETRY_COUNT``: times replicas, if that is less than the count."""
    rolling_update_frac: float = 0.2
    """``DEFAULT_ROLLING_UPDATE_PERCENTAGE``."""
    target_ongoing_requests: float = 2.0
    metrics_interval_s: float = 10.0
    look_back_period_s: float = 30.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    record_interval_factor: float = 0.2
    """Of the look-back: how often a handle samples itself (6 s of 30 s)."""
    min_handle_metrics_timeout_s: float = 10.0
    """A handle not heard of for twice its interval, or this, no longer counts."""
    queue_len_deadline_s: float = 0.1
    max_queue_len_deadline_s: float = 1.0
    queue_len_cache_timeout_s: float = 10.0
    retry_initial_backoff_s: float = 0.025
    retry_backoff_multiplier: int = 2
    retry_max_backoff_s: float = 0.5
    routing_tasks_per_replica: int = 2
    multiplexed_matching_timeout_s: float = 1.0
    """Drawn between this and twice this, at every look."""
    push_multiplexed_ids_interval_s: float = 0.1
    max_models_per_replica: int = 3
    """``@serve.multiplexed(max_num_models_per_replica=3)``."""
    proxy_health_check_period_s: float = 10.0
    """One that has died is replaced at the next check."""
    proxy_min_draining_period_s: float = 30.0
    proxy_drain_check_period_s: float = 5.0
    client_creation_interval_s: float = 0.1
    """``CLIENT_CHECK_CREATION_POLLING_INTERVAL_S``: how often ``serve.run`` looks whether the
    controller has taken the application up."""
    client_polling_interval_s: float = 1.0
    """``CLIENT_POLLING_INTERVAL_S``: how often it then looks whether the application runs."""
    max_batch_size: int = 10
    batch_wait_timeout_s: float = 0.01
    proxy_import_core_s: float = 1.0
    """Imports of ``ray.serve`` in a new process, which then opens its port; assumed."""


RAY_2_60 = ServeDefaults()
