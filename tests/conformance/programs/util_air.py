"""ray.air: configurations and a session of before, which Tune takes and Train refuses."""
# cluster: 4 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import air, train, tune
from ray.air import session
from ray.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def tells(what):
    try:
        print(what())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])


ray.init()
scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 3})
print(scaling.total_resources, scaling.num_cpus_per_worker, scaling.num_gpus_per_worker)
print([dict(bundle) for bundle in scaling.as_placement_group_factory().bundles])
print(air.RunConfig.__module__, air.ScalingConfig is train.ScalingConfig)
tells(lambda: CheckpointConfig(num_to_keep=-1))
tells(lambda: FailureConfig(fail_fast="x"))
tells(lambda: ScalingConfig(num_workers=1, resources_per_worker={"GPU": 1}))


def objective(config):
    for step in range(3):
        session.report({"score": config["x"] * step})


folder = tempfile.mkdtemp()
found = tune.Tuner(
    objective, param_space={"x": tune.grid_search([1, 2])},
    run_config=RunConfig(name="t", storage_path=folder, verbose=0),
).fit()  # fmt: skip
print([result.metrics["score"] for result in found])
plain = {"scaling_config": train.ScalingConfig(), "run_config": train.RunConfig()}
tells(lambda: TorchTrainer(print, **plain | {"scaling_config": ScalingConfig(num_workers=1)}))
tells(lambda: TorchTrainer(print, **plain | {"run_config": RunConfig()}))
