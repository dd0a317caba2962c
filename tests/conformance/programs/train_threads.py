"""OMP_NUM_THREADS of Ray Train's workers: their CPUs, unless somebody has set it."""
# cluster: 8 CPU, {"box": 4}

import os
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop():
    return os.environ.get("OMP_NUM_THREADS")


def threads(resources):
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            loop,
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker=resources),
            run_config=RunConfig(name="threads", storage_path=storage),
        )
        return trainer.fit().return_value


ray.init()
for resources in (None, {"box": 1}, {"CPU": 2.5}, {"CPU": 6}):
    print(resources, threads(resources))
ray.shutdown()
ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "5"}})
print("said", threads({"CPU": 2}))
