"""The controller's book of checkpoints: ``CheckpointManager``, and whose reports are complete.

Real counterparts: ``execution/checkpoint/checkpoint_manager.py`` and ``report_handler.py``. A
report counts when every rank's has come; its checkpoint is then registered, a snapshot written, and
what is beyond ``num_to_keep`` deleted: the worst by score, or the oldest, never the latest.

Not modelled: validation, the time of the snapshot and of deletions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysim.raycore.scripts import Event
from raysim.raylibs.train.config import CheckpointConfig
from raysim.raylibs.train.records import RunRecord, Saved
from raysim.raylibs.train.reports import Checkpoint, TrainingReport


class CheckpointManager:
    """One per run; its queues begin anew with each worker group."""

    def __init__(
        self, config: CheckpointConfig, record: RunRecord,
        earlier: tuple[tuple[Checkpoint, Mapping[str, Any]], ...] = (),
    ) -> None:  # fmt: skip
        self.config = config
        self.record = record
        self.results = list(earlier)
        """Worst first, or oldest first."""
        self.latest = earlier[-1] if earlier else None
        if config.checkpoint_score_attribute is not None:
            self.results.sort(key=self._score)
        self._queues: list[deque[TrainingReport]] = []
        self.count = 0
        """Reports of this worker group that have counted."""
        self.counted = Event()
        """Set at the next one."""

    def begin(self, world_size: int) -> None:
        """Another worker group: nothing that only some ranks have reported counts."""
        self._queues = [deque() for _ in range(world_size)]
        self.count = 0

    def collect(
        self, reports: Mapping[int, TrainingReport], now_ns: int
    ) -> list[list[TrainingReport]]:
        """What a poll has found, by rank; those of all ranks that it completes."""
        complete: list[list[TrainingReport]] = []
        for rank, report in reports.items():
            if report.of_all or len(self._queues) == 1:
                complete.append([report])
            else:
                self._queues[rank].append(report)
        if len(self._queues) > 1 and all(self._queues):
            complete.append([queue.popleft() for queue in self._queues])
        for each in complete:
            self._complete(each, now_ns)
        if complete:
            self.count += len(complete)
            counted, self.counted = self.counted, Event()
            counted.set()
        return complete

    def _complete(self, reports: list[TrainingReport], now_ns: int) -> None:
        self.record.reports += 1
        parts = [r.checkpoint for r in reports if r.checkpoint is not None]
        if not parts:
            return
        size_bytes = sum(part.size_bytes for part in parts)
        self.register(replace(parts[0], size_bytes=size_bytes), reports[0].metrics, now_ns)

    def register(self, checkpoint: Checkpoint, metrics: Mapping[str, Any], now_ns: int) -> None:
        """It is complete."""
        record, result = self.record, (checkpoint, metrics)
        self.latest = result
        self.results.append(result)
        if self.config.checkpoint_score_attribute is not None:
            self.results.sort(key=self._score)
        record.saved.append(
            Saved(
                step=checkpoint.step,
                reported_ns=checkpoint.reported_ns,
                registered_ns=now_ns,
                size_bytes=checkpoint.size_bytes,
            )
        )  # fmt: skip
        record.stored_bytes += checkpoint.size_bytes
        record.most_stored_bytes = max(record.most_stored_bytes, record.stored_bytes)
        keep = self.config.num_to_keep
        if keep is None:
            return
        gone = [r for r in self.results[:-keep] if r is not self.latest]
        self.results = [r for r in self.results if all(r is not g for g in gone)]
        record.stored_bytes -= sum(c.size_bytes for c, _ in gone)

    def _score(self, result: tuple[Checkpoint, Mapping[str, Any]]) -> tuple[bool, float]:
        """One without a score is worse than any other (``_get_checkpoint_score``)."""
        value = result[1].get(self.config.checkpoint_score_attribute or "")
        if value is None:
            return False, float("-inf")
        return True, float(value) if self.config.checkpoint_score_order == "max" else -float(value)
