"""Ray Train's own constants, of ray 2.60.

Real counterpart: ``python/ray/train/v2/_internal/constants.py`` and the files named beside the
others. Another version is ``dataclasses.replace`` of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.raycore.tasks import RuntimeEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDefaults:
    """Seconds."""

    health_check_interval_s: float = 2.0
    """Between two polls of the workers; the next begins so long after the last has ended."""
    worker_group_start_timeout_s: float = 60.0
    """For the placement group; then it is given back and asked for again."""
    preemption_poll_interval_s: float = 5.0
    preemption_deadline_s: float = 120.0
    """Where a drain says none."""
    elastic_resize_monitor_interval_s: float = 60.0
    """``ScalingConfig`` of ``train/v2/api/config.py``."""
    coordinator_tick_s: float = 20.0
    """How old the AutoscalingCoordinator's view of the nodes may be: ``TICK_INTERVAL_S`` of
    ``data/_internal/cluster_autoscaler/default_autoscaling_coordinator.py``."""
    reserved_resources_interval_s: float = 1.0
    """How often a group that cannot start asks again (``scaling_policy/elastic.py``)."""
    shutdown_patience_s: float = 5.0
    """For hooks of workers that are to end (``worker_group/state.py``)."""
    process_group_shutdown_timeout_s: float = 30.0
    """Of ``destroy_process_group`` where ranks hang: ``TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S`` of
    ``train/constants.py``."""


TRAIN_2_60 = TrainDefaults()

RUN_ENV = RuntimeEnv(key="ray.train")
"""The controller is given variables of its own (``train/v2/api/data_parallel_trainer.py``), and
actors inherit their creator's environment: no worker that is there already suits any of them."""
