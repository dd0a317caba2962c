"""Runs of one name: a second goes on from the first's checkpoints; what is kept; ranks that meet."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import ray
from ray import train
from ray.train import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import TorchTrainer


def loop(config):
    first, checkpoint = 0, train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "step").read_text()) + 1
    with Path(config["log"]).open("a") as log:
        log.write(f"from {first}\n")
    for step in range(first, config["steps"]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            metrics = {"step": step, "acc": [0.1, 0.9, 0.5, 0.3][step]}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder),
                         checkpoint_dir_name=f"cp{step}")  # fmt: skip


def meeting(config):
    rank = train.get_context().get_world_rank()
    said = broadcast_from_rank_zero({"k": 5} if rank == 0 else None)
    barrier()
    Path(config["folder"], f"rank{rank}").write_text(str(said))
    train.report(5)
    return rank * 10


def main():
    ray.init()
    with tempfile.TemporaryDirectory() as folder:
        where, log = Path(folder, "n"), Path(folder, "log")
        kept = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc")
        for steps in (2, 4):
            result = TorchTrainer(
                loop, train_loop_config={"log": str(log), "steps": steps},
                scaling_config=ScalingConfig(num_workers=1),
                run_config=RunConfig(name="n", storage_path=folder, checkpoint_config=kept),
            ).fit()  # fmt: skip
            print(result.metrics, log.read_text().split())
            print(sorted(path.name for path in where.glob("cp*")))
        found = Result.from_path(str(where))
        print(found.metrics, found.error, Path(found.checkpoint.path).name)
        print([(Path(c.path).name, metrics["acc"]) for c, metrics in found.best_checkpoints])
        print(Path(found.get_best_checkpoint("acc", "max").path).name)
        for wrong in ("zz", "empty"):
            Path(folder, "empty").mkdir(exist_ok=True)
            try:
                Result.from_path(str(Path(folder, wrong)))
            except RuntimeError as error:
                print(str(error).replace(folder, "")[:50])
        result = TorchTrainer(
            meeting, train_loop_config={"folder": folder},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="m", storage_path=folder),
        ).fit()  # fmt: skip
        print([Path(folder, f"rank{rank}").read_text() for rank in (0, 1)], result.metrics)
        print(str(result).partition("path=")[0], result.return_value)


if __name__ == "__main__":
    main()
