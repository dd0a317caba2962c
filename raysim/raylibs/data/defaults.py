"""What ``ray.data.DataContext`` holds, and the constants of the code around it.

Real counterpart: ``python/ray/data/context.py`` of ray 2.60 unless a line names another file; paths
are relative to ``python/ray/data``. An older version is ``replace(DataContext(), ...)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from raysim.units import GIB, MIB

ShuffleStrategy = Literal[
    "shuffle_v2", "hash_shuffle", "sort_shuffle_pull_based", "sort_shuffle_push_based"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataContext:
    """Settings of one dataset's execution."""

    # blocks
    target_max_block_size: int = 128 * MIB
    target_min_block_size: int = MIB
    read_op_min_num_blocks: int = 200

    # tasks
    max_num_blocks_in_streaming_gen_buffer: int = 2
    scheduling_strategy: Literal["SPREAD", "DEFAULT"] = "SPREAD"
    scheduling_strategy_large_args: Literal["SPREAD", "DEFAULT"] = "DEFAULT"
    large_args_threshold: int = 50 * MIB
    task_max_retries: int = -1
    """-1: without limit (``_internal/execution/operators/map_operator.py``)."""

    fuses_reads_and_batches: bool = False
    """Of ``map_batches(batch_size=)`` right behind a read, a filter or a flat_map; so it was before
    ``AbstractMap.can_modify_num_rows`` (``_internal/logical/rules/operator_fusion.py``)."""

    # budgets
    op_resource_reservation_enabled: bool = True
    op_resource_reservation_ratio: float = 0.5
    object_store_limit_frac: float = 0.5
    """Of the cluster's store (``_internal/execution/resource_manager.py``)."""
    object_store_limit_frac_unreserved: float = 0.25
    """The same without the allocator."""
    global_limits_update_interval_s: float = 1.0
    coordinated_limits: bool = True
    """What there is to use is asked of the AutoscalingCoordinator and seen one interval later: till
    then an execution has no budget, and runs one task at a time
    (``cluster_autoscaler/default_autoscaling_coordinator.py``). False: of the GCS, at once."""
    downstream_capacity_backpressure_ratio: float | None = 2.0
    downstream_capacity_threshold: float = 0.5
    """Of an operator's budget in use before that ratio counts (``backpressure_policy``)."""

    # actor pools
    actor_tasks_in_flight_factor: int = 2
    """``max_tasks_in_flight_per_actor`` over an actor's concurrency."""
    actor_pool_util_upscaling_threshold: float = 1.75
    actor_pool_util_downscaling_threshold: float = 0.5

    # the loop
    wait_for_task_completion_s: float = 0.1
    """``WAIT_FOR_TASK_COMPLETION_TIMEOUT_S`` of ``streaming_executor_state.py``."""
    consumer_poll_s: float = 0.01
    """``OpState.get_output_blocking`` there."""
    streaming: bool = True
    """False: one operator after the other, as before 2.4's streaming executor."""
    preserve_order: bool = False
    resource_limits: tuple[float, float, float] = (inf, inf, inf)
    exclude_resources: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of ``ExecutionOptions``: CPUs, GPUs, bytes of the object store."""

    max_errored_blocks: int = 0
    """Tasks that may fail and leave their blocks out; negative: any number."""

    # all-to-all
    shuffle_strategy: ShuffleStrategy = "shuffle_v2"
    default_hash_shuffle_parallelism: int = 200
    max_hash_shuffle_aggregators: int = 128
    shuffle_input_batch_bytes: int = GIB
    """Inputs of one map of SHUFFLE_V2 are put together up to this, node by node."""
    push_based_merge_factor: int = 2
    """Maps per merge (``_internal/planner/push_based_shuffle.py``)."""

    # the cluster
    cluster_autoscaling: bool = False
    """Ask for nodes (Ray always asks; raysim only where the cluster can grow)."""
    autoscaling_period_s: float = 10.0
    autoscaling_low_util: float = 0.5
    autoscaling_max_added_cpus: float = 256.0
    autoscaling_max_added_gpus: float = 32.0

    # iter_batches
    batch_size: int = 256
    prefetch_batches: int = 1
    max_batch_threads: int = 4
    """``_internal/block_batching/iter_batches.py``."""

    @property
    def generator_backpressure(self) -> int:
        """Blocks a task goes on to make while the driver has not looked at them; -1: all.

        Ray keeps two in the generator's buffer; here the driver looks at the first of them.
        """
        return self.max_num_blocks_in_streaming_gen_buffer - 1 if self.streaming else -1
