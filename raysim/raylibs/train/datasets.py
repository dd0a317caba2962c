"""Datasets of a trainer between its ranks: ``DatasetManager``.

Real counterpart (ray 2.60): ``train/v2/_internal/data_integration/dataset_manager.py``,
``callbacks/datasets.py``, ``train/_internal/data_config.py``: an actor on the controller's node,
one per worker group. Rank 0's call makes the shares of a dataset, an equal streaming split with the
ranks' nodes as hints, whose coordinator is on that node too; the others wait for it.

Not modelled: the AutoscalingCoordinator's share for data; what the workers hold is left out of the
executions' budgets instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysim.kernel.rng import Streams
from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, wait_for
from raysim.raycore.tasks import ActorOptions, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.resources import Resources
from raysim.raylibs.data.specs import Dataset, Split
from raysim.raylibs.data.split import streaming_split
from raysim.raylibs.data.stats import ExecutionStats
from raysim.raylibs.train.defaults import RUN_ENV


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDataset:
    """One of the trainer's."""

    dataset: Dataset
    context: DataContext
    streams: Streams
    is_split: bool = True
    """False: every rank reads all of it, by an execution of its own."""
    locality: bool = True
    """``DataConfig(enable_shard_locality=)``."""


class DatasetManager:
    """One per worker group."""

    def __init__(
        self, process: CoreProcess, datasets: Mapping[str, TrainDataset],
        nodes: tuple[NodeID, ...], held: Resources,
    ) -> None:  # fmt: skip
        self.process = process
        self.datasets = datasets
        self.nodes = nodes
        """Of the ranks."""
        self.held = held
        """By all of them."""
        self._made: dict[str, Event] = {}

    def coordinator_of(self, name: str, rank: int) -> Script:
        """Of a dataset that is split; None of one that is not; TaskError if it cannot be made."""
        said = self.datasets[name]
        if not said.is_split:
            return None
        made = self._made.setdefault(name, Event())
        if rank != 0 or made.is_set:
            return (yield wait_for(made))
        hints = self.nodes if said.locality else ()
        split = Split(n=len(self.nodes), equal=True, locality_hints=hints)
        coordinator = yield from streaming_split(
            said.dataset, split, said.context, said.streams, excluded=self.held
        )
        made.set(coordinator)
        return coordinator

    def shutdown(self) -> Script:
        """The coordinators go with their group; statistics of what they have run, by dataset."""
        found: dict[str, list[ExecutionStats]] = {}
        for name, made in self._made.items():
            if made.is_set and not isinstance(made.value, TaskError):
                coordinator: ActorHandle = made.value
                stats = yield from coordinator.ask("finish")
                found[name] = [] if isinstance(stats, TaskError) else stats
                yield coordinator.kill()
        return found


DATASET_MANAGER = ActorClass(
    cls=DatasetManager, actor=ActorOptions(is_async=True, max_concurrency=100_000),
    runtime_env=RUN_ENV,
)  # fmt: skip
