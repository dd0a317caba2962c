"""A user's training loop, said by numbers: steps, reports, checkpoints, and how it begins.

Real counterpart: ``train_loop_per_worker``. One loop is played either by every rank in its own
process, call by call, or by one script for all of them, in bulk (``bulk.py``): both offer the same
(``Ranks``), so a loop does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from raysim.raycore.scripts import Script
from raysim.raylibs.train.shards import Dataset
from raysim.training.checkpoint.traffic import LOAD_BYTES_PER_S, SAVE_BYTES_PER_S

UploadMode = Literal["SYNC", "ASYNC", "NO_UPLOAD"]
"""``CheckpointUploadMode``."""


class StepTime(Protocol):
    """How long a step takes where nothing interferes."""

    def seconds(self, world_size: int) -> float:
        """Of one step of a group of so many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantStep:
    """So many seconds, whoever computes it."""

    step_s: float
    world_size: int | None = None
    """The global batch is fixed: other sizes take longer or shorter in proportion. None: the batch
    of each rank is."""

    def seconds(self, world_size: int) -> float:
        """Of one step."""
        return self.step_s * (self.world_size or world_size) / world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """What a save writes, who writes and who reads it."""

    total_bytes: float
    writers: Literal["all", "rank0"] = "all"
    """``all``: each rank its own part; ``rank0``: gathered by the first."""
    readers: Literal["own", "whole"] = "own"
    """What each rank reads to go on: its own part, or everything."""
    gather_s: float = 0.0
    """Until rank 0 has everything."""
    save_bytes_per_s: float = SAVE_BYTES_PER_S
    """Into a local folder, by one thread of each writer."""
    load_bytes_per_s: float = LOAD_BYTES_PER_S
    mode: UploadMode = "SYNC"

    def written_bytes(self, rank: int, world_size: int) -> float:
        """By one rank."""
        if self.writers == "rank0":
            return 0.0 if rank else self.total_bytes
        return self.total_bytes / world_size

    def read_bytes(self, world_size: int) -> float:
        """By each rank."""
        return self.total_bytes / (world_size if self.readers == "own" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What a rank does before its first step."""

    core_s: float = 0.0
    """On a core: imports beyond Ray Train's and torch's, building the model."""
    wait_s: float = 0.0
    """Beside that: contexts, engines, the first batch."""
    read_bytes: float = 0.0
    """Weights from the store, by each node for its ranks, where no checkpoint is loaded."""


class Ranks(Protocol):
    """Who plays a loop: one rank, or all of them at once."""

    loop: TrainLoop
    world_size: int
    done: int
    """Steps, counted from the first of the job."""
    resumes: bool
    """A checkpoint has been handed over."""

    def set_up(self, spec: SetUp) -> Script:
        """Get ready."""

    def load(self, spec: CheckpointSpec) -> Script:
        """Read the checkpoint that was handed over."""

    def train(self, upto: int, *, last_reports: bool) -> Script:
        """Steps and reports up to a step, or to one before where a preemption is known."""

    def save(self, spec: CheckpointSpec) -> Script:
        """Save, and report it."""

    def finish(self) -> Script:
        """Wait for what is still on its way."""

    @property
    def preempted(self) -> bool:
        """Whether ``get_preemption_info()`` has something that no save has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLoop:
    """Steps, with what comes between them."""

    steps: int
    step: StepTime
    step_cv: float = 0.0
    """Spread of one step's time, of the whole group."""
    report_every: int | None = None
    """Steps between reports of metrics alone."""
    checkpoint_every: int | None = None
    checkpoint: CheckpointSpec | None = None
    dataset: Dataset | None = None
    set_up: SetUp = field(default_factory=SetUp)
    on_preemption: Literal["ignore", "checkpoint"] = "ignore"
    """``checkpoint``: every step asks ``get_preemption_info()``, and saves once it says something.
    """

    def __post_init__(self) -> None:
        assert self.steps > 0, f"{self.steps} steps"
        assert self.report_every is None or self.report_every > 0, "report_every"
        saves = self.checkpoint_every is not None or self.on_preemption == "checkpoint"
        assert not saves or self.checkpoint is not None, "a save of what?"

    def run(self, ranks: Ranks) -> Script:
        """The loop itself."""
        yield from ranks.set_up(self.set_up)
        if ranks.resumes:
            assert self.checkpoint is not None, "a checkpoint that this loop did not write"
            yield from ranks.load(self.checkpoint)
        every = self.checkpoint_every
        while ranks.done < self.steps:
            upto = self.steps
            if every is not None:
                upto = min(upto, (ranks.done // every + 1) * every)
            saves = every is not None and upto % every == 0
            yield from ranks.train(upto, last_reports=not saves)
            if (saves and ranks.done == upto) or ranks.preempted:
                assert self.checkpoint is not None, "a save of what?"
                yield from ranks.save(self.checkpoint)
        yield from ranks.finish()
