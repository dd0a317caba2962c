"""Ray's own settings, by Ray's own names, with Ray's defaults.

Real counterpart: ``src/ray/common/ray_config_def.h`` at 0006bd6c (ray 2.60), and the constants of
the Python packages where a comment says so. A real cluster overrides them with ``RAY_<name>`` in
the environment; a scenario does with the same names. Only settings that raysim honours are here.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Every setting a room reads. Units are in the names, as Ray has them."""

    # scheduling
    scheduler_spread_threshold: float = 0.5
    scheduler_top_k_fraction: float = 0.2
    scheduler_top_k_absolute: int = 1
    scheduler_avoid_gpu_nodes: bool = True
    worker_cap_enabled: bool = True
    worker_cap_initial_backoff_delay_ms: int = 1_000
    worker_cap_max_backoff_delay_ms: int = 10_000
    locality_aware_leasing_enabled: bool = True
    max_pending_lease_requests_per_scheduling_category: int = -1
    worker_lease_timeout_milliseconds: int = 500
    max_task_args_memory_fraction: float = 0.7

    # inlining
    max_direct_call_object_size: int = 100 * 1024
    task_rpc_inlined_bytes_limit: int = 10 * MIB

    # reporting
    raylet_report_resources_period_milliseconds: int = 100
    gcs_pull_resource_loads_period_milliseconds: int = 1_000
    report_worker_backlog_interval_ms: int = 1_000
    max_resource_shapes_per_load_report: int = 100

    # workers
    worker_register_timeout_seconds: int = 60
    worker_maximum_startup_concurrency: int = 0
    enable_worker_prestart: bool = False
    prestart_worker_first_driver: bool = True
    kill_idle_workers_interval_ms: int = 200
    idle_worker_killing_time_threshold_ms: int = 1_000
    idle_worker_killing_memory_threshold_bytes: int = GIB
    num_workers_soft_limit: int = -1
    pop_worker_max_retries: int = 5
    actor_graceful_shutdown_timeout_ms: int = 30_000

    # object store
    object_store_full_delay_ms: int = 10
    oom_grace_period_s: float = 2.0
    object_spilling_threshold: float = 0.8
    object_spilling_directory: str = ""
    """As ``ray start --object-spilling-directory``: any is on the instance's own disks. Without it
    files are beside the session's, on the root volume where a node has one."""
    min_spilling_size: int = 100 * MIB
    max_spilling_file_size_bytes: int = -1
    max_fused_object_count: int = 2_000
    max_io_workers: int = 4
    free_objects_period_milliseconds: int = 1_000
    free_objects_batch_size: int = 100
    local_fs_capacity_threshold: float = 0.95

    # transfer
    object_manager_default_chunk_size: int = 5 * MIB
    object_manager_max_bytes_in_flight: int = 2 * GIB
    object_manager_pull_timeout_ms: int = 10_000
    object_manager_timer_freq_ms: int = 100
    object_manager_rpc_threads_num: int = 0
    max_object_report_batch_size: int = 2_000
    fetch_fail_timeout_milliseconds: int = 600_000
    worker_fetch_request_size: int = 10_000

    # memory monitor
    memory_monitor_refresh_ms: int = 250
    memory_usage_threshold: float = 0.95
    min_memory_free_bytes: int = -1
    max_kill_memory_buffer_bytes: int = 3 * GIB
    worker_killing_policy_by_group: bool = False
    task_oom_retries: int = -1
    task_oom_retry_delay_base_ms: int = 1_000

    # faults
    health_check_initial_delay_ms: int = 5_000
    health_check_period_ms: int = 3_000
    health_check_timeout_ms: int = 10_000
    health_check_failure_threshold: int = 5
    raylet_death_check_interval_milliseconds: int = 1_000
    raylet_liveness_self_check_interval_ms: int = 60_000
    task_retry_delay_ms: int = 0
    core_worker_internal_heartbeat_ms: int = 1_000
    task_actor_unavailable_retry_base_ms: int = 100
    task_actor_unavailable_retry_cap_ms: int = 5_000
    timeout_ms_task_wait_for_death_info: int = 1_000
    max_lineage_bytes: int = GIB
    actor_scheduling_queue_max_reorder_wait_seconds: int = 30
    cancellation_retry_ms: int = 2_000

    # GCS
    gcs_storage: str = "memory"
    gcs_rpc_server_reconnect_timeout_s: int = 60
    gcs_lease_worker_retry_interval_ms: int = 200
    gcs_create_actor_retry_interval_ms: int = 200
    gcs_create_placement_group_retry_min_interval_ms: int = 100
    gcs_create_placement_group_retry_max_interval_ms: int = 1_000
    gcs_create_placement_group_retry_multiplier: float = 1.5
    maximum_gcs_destroyed_actor_cached_count: int = 100_000
    maximum_gcs_dead_node_cached_count: int = 1_000

    # autoscaler, from python/ray/autoscaler/v2 and ray_constants
    autoscaler_update_interval_s: float = 5.0
    autoscaler_max_concurrent_launches: int = 10
    upscaling_speed: float = 0.0
    idle_timeout_minutes: float = 5.0

    # Python's defaults (python/ray/_private/ray_constants.py, ray_option_utils.py)
    default_max_retries: int = 3
    default_object_store_memory_proportion: float = 0.3
    default_object_store_max_memory_bytes: int = 200 * 10**9
