"""What is counted of an operator, for its budget while it runs and its statistics afterwards.

Real counterpart: ``_internal/execution/interfaces/op_runtime_metrics.py``.
"""

from __future__ import annotations

from raysim.raylibs.data.defaults import DataContext


class OpMetrics:
    """Of one operator."""

    def __init__(self, context: DataContext) -> None:
        self.context = context
        self.tasks_submitted = self.tasks_finished = 0
        self.outputs_of_finished = 0
        self.blocks_in = self.rows_in = 0
        self.blocks_out = self.rows_out = self.bytes_out = 0
        self.input_bytes_pending = 0
        """Of the running tasks' inputs."""
        self.task_ns = 0
        """Submission to end, of all tasks."""
        self.first_ns = self.last_ns = -1
        self.peak_bytes = 0

    @property
    def bytes_per_output(self) -> float | None:
        """Mean size of an output block; None before the first."""
        return self.bytes_out / self.blocks_out if self.blocks_out else None

    @property
    def outputs_per_task(self) -> float | None:
        """Mean number of blocks of a task that has ended."""
        return self.outputs_of_finished / self.tasks_finished if self.tasks_finished else None

    @property
    def max_pending_output_per_task(self) -> float | None:
        """Bytes in one task's generator buffer; None before the first block."""
        each = self.bytes_per_output
        if each is None:
            return None
        blocks: float = self.context.max_num_blocks_in_streaming_gen_buffer
        per_task = self.outputs_per_task
        return each * (blocks if per_task is None else min(blocks, per_task))
