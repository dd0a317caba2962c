"""Loops that fail: which ranks, and what fit() raises."""
# cluster: 2 CPU

import tempfile

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def raises():
    rank = ray.train.get_context().get_world_rank()
    raise ValueError(f"bad batch of rank {rank}")


ray.init()
with tempfile.TemporaryDirectory() as storage:
    try:
        TorchTrainer(
            raises,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name="raises", storage_path=storage),
        ).fit()
    except ray.train.TrainingFailedError as error:
        print(type(error).__name__, sorted(error.worker_failures))
        first, second, *_, last = str(error).strip().splitlines()
        print(first, "|", second, "|", last)
        print(isinstance(error, ray.train.WorkerGroupError))
        print([type(e).__name__ for e in error.worker_failures.values()])
