"""Datasets of Ray Data into training steps on GPUs: which of the two binds, and what overlaps."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.rayapi.loader import run_program  # noqa: E402
from raysim.raycore.cluster import Cluster  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

ROWS, EPOCHS, WORKERS = 65_536, 2, 8


def fed(decode_s_per_row: float) -> tuple[Any, LibraryReport, float]:
    """Eight GPUs and a network of 72 M parameters: the result, its report, CPUs of the node."""
    cluster = Cluster(Simulation(seed=0), machines())

    def main() -> Any:
        import time

        import numpy as np
        import ray
        import ray.train
        from ray.train.torch import TorchTrainer, prepare_model

        def decode(batch: Any) -> Any:
            rows = len(batch["id"])
            time.sleep(rows * decode_s_per_row)
            return {"x": np.zeros((rows, 512), np.float32), "y": np.zeros(rows, np.int64)}

        def loop() -> Any:
            layers = [nn.Linear(512, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.Linear(8192, 10)]
            model = prepare_model(nn.Sequential(*layers))
            optimizer = torch.optim.AdamW(model.parameters())
            rows = 0
            for _ in range(EPOCHS):
                shard = ray.train.get_dataset_shard("train")
                for batch in shard.iter_torch_batches(batch_size=256):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
                    optimizer.step()
                    rows += len(batch["y"])
            return rows, batch["x"].device.type == "cuda"

        ray.init()
        table = ray.data.range(ROWS, override_num_blocks=256).map_batches(decode)
        return TorchTrainer(
            loop,
            datasets={"train": table},
            scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, use_gpu=True),
        ).fit()

    result, _ = run_program(main, cluster)
    (report,) = cluster.env.reports
    return result.return_value, report, float(cluster.env.nodes[0].spec.vcpus)


def test_gpus_that_wait_for_slow_rows_say_so() -> None:
    value, report, cpus = fed(0.02)
    assert value == (EPOCHS * ROWS // WORKERS, True)
    assert report.bound_by.startswith("waiting for data")
    made_s = EPOCHS * ROWS * 0.02 / cpus
    assert report.metrics["data_stall_s"] == pytest.approx(made_s, rel=0.2)


def test_rows_that_are_quick_to_make_are_made_while_the_gpus_step() -> None:
    value, report, _ = fed(1e-6)
    assert value == (EPOCHS * ROWS // WORKERS, True)
    steps = EPOCHS * ROWS // WORKERS // 256
    assert report.metrics["steps_s"] == pytest.approx(
        steps * report.metrics["step_seconds"], rel=1e-3
    )
    # The first rows wait for a worker that imports Ray Data (0.55 s of a core), and every block, a
    # batch here, for the next look at the stream (16.5 ms from one to the next on real Ray).
    looks_s = steps * 16.5e-3 - report.metrics["steps_s"]
    assert report.metrics["data_stall_s"] < 0.85 + 0.55 + looks_s
