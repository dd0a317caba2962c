"""Loops that fail once and go on from the checkpoint they load: an exception, a dead worker."""
# cluster: 2 CPU

import json
import os
import tempfile
import time
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def resumes(config):
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    rank = ray.train.get_context().get_world_rank()
    for step in range(start, 5):
        if step == 3 and checkpoint is None:
            if config["how"] == "exit":
                time.sleep(5)  # reports are taken every 2 s
                os._exit(1)
            raise RuntimeError(f"rank {rank} before step 3")
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                Path(folder, "state.json").write_text(json.dumps({"step": step}))
            ray.train.report(
                {"step": step, "start": start}, checkpoint=Checkpoint.from_directory(folder)
            )
    return start


ray.init()
with tempfile.TemporaryDirectory() as storage:
    for how in ("raise", "exit"):
        result = TorchTrainer(
            resumes,
            train_loop_config={"how": how},
            scaling_config=ScalingConfig(num_workers=2 if how == "raise" else 1),
            run_config=RunConfig(
                name=how, storage_path=storage, failure_config=FailureConfig(max_failures=1)
            ),
        ).fit()
        print(how, result.return_value, result.metrics, len(result.best_checkpoints))
