"""What Ray Train refuses, in the driver and in a loop."""
# cluster: 2 CPU

import tempfile

import ray
import ray.train
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def said(what):
    try:
        what()
    except Exception as error:
        print(type(error).__name__, "|", str(error).splitlines()[0][:70])
    else:
        print("fine")


def two(a, b):
    pass


def optional(config=None):
    return config


def loop(config):
    try:
        ray.train.report({}, validation=True)
    except ValueError as error:
        return config | {"error": str(error)}


ray.init()
said(lambda: ScalingConfig(num_workers="2"))
said(lambda: ScalingConfig(num_workers=-1))
said(lambda: ScalingConfig(num_workers=(3, 2)))
said(lambda: ScalingConfig(num_workers=1, resources_per_worker={"GPU": 1}))
said(lambda: CheckpointConfig(num_to_keep=0))
said(lambda: CheckpointConfig(checkpoint_score_order="up"))
said(lambda: ray.train.get_context())
said(lambda: ray.train.report({"a": 1}))
said(lambda: TorchTrainer(two).fit())
print(ScalingConfig(num_workers=(1, 3)).max_workers, ScalingConfig().num_workers)
with tempfile.TemporaryDirectory() as storage:
    run = RunConfig(name="checks", storage_path=storage)
    print(TorchTrainer(optional, run_config=run).fit().return_value)
    print(TorchTrainer(loop, train_loop_config={"lr": 0.1}, run_config=run).fit().return_value)
