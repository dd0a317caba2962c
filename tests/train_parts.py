"""Small runs of Ray Train for tests: what a test sets is what matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raysim.hardware.specs import SharedStorageSpec
from raysim.raycore.cluster import Cluster
from raysim.raycore.faults import Faults
from raysim.raycore.scripts import Ask, Event, Script, drive, spawn, wait_for
from raysim.raylibs.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.fit import fit
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep, TrainLoop
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker import TrainFunction
from raysim.units import to_seconds
from tests.raycore_parts import ray_cluster

STORE = SharedStorageSpec(
    name="store", write_bytes_per_s=5e9, read_bytes_per_s=5e9, node_write_bytes_per_s=2e9
)
CHECKPOINT = CheckpointSpec(total_bytes=8e9, save_bytes_per_s=1e9, load_bytes_per_s=1e9)


class Played(NamedTuple):
    """A run, as far as it came."""

    outcome: Any
    """None: it had not ended."""
    record: RunRecord
    cluster: Cluster

    def parts_s(self) -> dict[str, float]:
        """Phases that took any time, in seconds to a millisecond."""
        parts = self.record.parts_ns()
        return {p: round(to_seconds(ns), 3) for p, ns in parts.items() if ns >= 500_000}

    def states(self) -> list[str]:
        """Of the controller, in order."""
        return [state for _, state in self.record.states]


def loop(**changes: Any) -> TrainLoop:
    """60 steps of a second, saved every 20."""
    settings: dict[str, Any] = {
        "steps": 60, "step": ConstantStep(step_s=1.0), "checkpoint_every": 20,
        "checkpoint": CHECKPOINT,
    }  # fmt: skip
    return TrainLoop(**(settings | changes))


def trainer(
    a_loop: TrainLoop | None = None, *, workers: Any = 8, in_bulk: bool = True,
    failures: FailureConfig | None = None, keep: int | None = None, gpus: bool = True,
    name: str = "run", **more: Any,
) -> TrainerSpec:  # fmt: skip
    """On GPUs, with a shared store."""
    return TrainerSpec(
        function=TrainFunction(loop=a_loop or loop(), in_bulk=in_bulk),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=RunConfig(
            name=name, storage=STORE, failure_config=failures or FailureConfig(),
            checkpoint_config=CheckpointConfig(num_to_keep=keep),
        ),
        **more,
    )  # fmt: skip


def users(
    body: Callable[[TrainContext], Script], *, workers: int = 2, gpu: bool = True, **run: Any
) -> TrainerSpec:  # fmt: skip
    """A user's own function, said as a script."""

    def function(context: TrainContext) -> Ask:
        ended = Event()
        spawn_it = spawn(body(context), ended.set)
        return Ask(lambda driver: (spawn_it.begin(driver), wait_for(ended).begin(driver))[1])

    return TrainerSpec(
        function=TrainFunction(user=function),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(storage=STORE, **run),
    )


def play(
    spec: TrainerSpec | None = None, *, nodes: int = 2, gpus: int = 4,
    faults: Callable[[Any, Faults], object] | None = None, until: str = "3h", **cluster: Any,
) -> Played:  # fmt: skip
    """Fit on a small cluster."""
    made = ray_cluster(nodes, cpus=16, gpus=gpus, log=False, **cluster)
    record, ended = RunRecord(), []
    made.driver(lambda d: drive(d, lambda _: fit(spec or trainer(), record), ended.append))
    if faults is not None:
        faults(made.sim, Faults(made))
    made.sim.run(until)
    return Played(ended[0] if ended else None, record, made)
