"""``ray.train`` in programs: loops in fibers, what a run's record says of them, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.rayapi.checkpoint import STANDS_FOR, Checkpoint
from raysim.rayapi.loader import run_program
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.report import LibraryReport
from tests.rayapi_parts import run
from tests.raycore_parts import ray_cluster


def fit(loop: Any, *, workers: int = 2, cluster: Any = None, **more: Any) -> Any:
    """What ``TorchTrainer(loop, ...).fit()`` returns, and what is reported of the run."""
    cluster = cluster or ray_cluster(cpus=4, check=True)

    def main() -> Any:
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        ray.init()
        return TorchTrainer(
            loop,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(name="run", **more),
        ).fit()

    result, _ = run_program(main, cluster)
    (report,) = cluster.env.reports
    return result, report


def seconds(report: LibraryReport, phase: str) -> float:
    rows = {row[0]: row[1] for row in report.tables[0].rows}
    return float(rows.get(phase, 0.0))  # type: ignore[arg-type]


def test_time_of_a_loop_passes_on_the_virtual_clock() -> None:
    def loop() -> None:
        import time

        import ray

        for _ in range(3):
            time.sleep(100)
            ray.train.report({})

    result, report = fit(loop)
    assert result.error is None
    assert report.ok
    assert seconds(report, "steps that are kept") == pytest.approx(300, rel=1e-3)
    assert report.metrics["steps_per_s"] == pytest.approx(3 / report.metrics["seconds"])


@pytest.mark.parametrize(
    ("cost", "times"), [("setup_worker_core_s", 3), ("train_worker_core_s", 2)]
)
def test_a_run_s_processes_start_one_after_the_other(cost: str, times: int) -> None:
    """Controller, coordinator and workers, in an environment; the first and the last import."""

    def took_s(core_s: float) -> float:
        costs = {cost: core_s, "worker_start_sigma": 0.0}
        report = fit(lambda: None, cluster=ray_cluster(cpus=32, costs=costs))[1]
        return float(report.metrics["seconds"])

    assert took_s(20.5) - took_s(0.5) == pytest.approx(times * 20.0, abs=2.0), "polls are 2 s apart"


def test_reports_wait_for_the_slowest_rank() -> None:
    def loop() -> float:
        import time

        import ray

        rank = ray.train.get_context().get_world_rank()
        began = time.time()
        time.sleep(10 if rank == 1 else 0)
        ray.train.report({})
        return time.time() - began

    result, _ = fit(loop)
    assert result.return_value == pytest.approx(10, abs=0.1)


def test_work_after_the_last_checkpoint_is_lost_and_done_again() -> None:
    def loop() -> int:
        import tempfile
        import time
        from pathlib import Path

        import ray

        found = ray.train.get_checkpoint()
        start = int(Path(found.path, "step").read_text()) if found else 0
        for step in range(start, 4):
            time.sleep(50)
            if step == 2 and found is None:
                raise RuntimeError("once")
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step + 1))
                ray.train.report({"step": step}, ray.train.Checkpoint.from_directory(folder))
        return start

    from raysim.rayapi.train import FailureConfig

    result, report = fit(loop, workers=1, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 2
    assert report.metrics["restarts"] == 1
    assert seconds(report, "work that was lost") == pytest.approx(50, rel=0.05)
    assert seconds(report, "steps that are kept") == pytest.approx(200, rel=0.02)


def test_checkpoints_that_stand_for_bytes_are_paid_for() -> None:
    def loop(size_bytes: int) -> None:
        import tempfile
        from pathlib import Path

        import ray

        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model").write_bytes(STANDS_FOR + str(size_bytes).encode() + b"\n")
            ray.train.report({}, ray.train.Checkpoint.from_directory(folder))

    took = []
    for size_bytes in (10**9, 10**11):
        _, report = fit(lambda n=size_bytes: loop(n), workers=1)
        assert report.metrics["stored_bytes"] == size_bytes
        took.append(seconds(report, "saving and uploading"))
    (disk,) = ray_cluster(cpus=4).env.nodes[0].spec.disks
    written_s = (10**11 - 10**9) / disk[0].write_bytes_per_s
    assert took[1] - took[0] == pytest.approx(written_s, rel=0.02)


def test_a_checkpoint_is_as_large_as_its_files_or_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x" * 77)
    (tmp_path / "stands").write_bytes(STANDS_FOR + b"1000\nshort")
    assert Checkpoint(str(tmp_path)).size_bytes == 1077


def test_several_trainers_of_one_driver() -> None:
    def main() -> list[Any]:
        import ray
        from ray.train.torch import TorchTrainer

        ray.init()
        return [TorchTrainer(lambda n=n: n).fit().return_value for n in range(3)]

    assert run(main) == [0, 1, 2]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (lambda train, torch: torch.TorchTrainer(len, validation_config=1), "validation_config="),
        (lambda train, torch: torch.TorchTrainer(
            len, scaling_config=train.ScalingConfig(num_workers=0)).fit(), "local mode"),
        (lambda train, torch: torch.TorchTrainer(
            len, run_config=train.RunConfig(storage_filesystem=1)).fit(), "storage_filesystem="),
        (lambda train, torch: torch.accelerate, "torch.accelerate"),
    ],
)  # fmt: skip
def test_what_is_not_emulated_is_refused_by_name(what: Any, name: str) -> None:
    def main() -> None:
        import ray
        import ray.train.torch

        ray.init()
        what(ray.train, ray.train.torch)

    with pytest.raises(NotEmulatedError, match=name):
        run(main)


def test_what_a_loop_uses_that_is_not_emulated_is_refused_too() -> None:
    def loop() -> None:
        import ray

        ray.train.get_context().get_storage()

    with pytest.raises(NotEmulatedError, match="get_storage"):
        fit(loop)


def fed(make_s: float, step_s: float) -> LibraryReport:
    """A trainer of two ranks, 20 batches each, from blocks that take so long to make."""
    cluster = ray_cluster(cpus=4, check=True)

    def main() -> Any:
        import time

        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        def slow(batch: Any) -> Any:
            time.sleep(make_s)
            return batch

        def loop() -> int:
            rows = 0
            for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=100):
                time.sleep(step_s)
                rows += len(batch["id"])
            ray.train.report({})
            return rows

        ray.init()
        dataset = ray.data.range(4_000, override_num_blocks=40).map_batches(slow)
        return TorchTrainer(
            loop,
            datasets={"train": dataset},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="run"),
        ).fit()

    result, _ = run_program(main, cluster)
    assert result.return_value == 2_000
    report: LibraryReport
    (report,) = cluster.env.reports
    return report


def test_a_trainer_whose_data_are_slow_says_that_it_waits_for_them() -> None:
    # Two CPUs are left for 40 blocks of 2 s: 20 rounds, each seen up to 0.1 s late, as ray.wait
    # gives up then on who is not ready. Meanwhile each rank steps for 20 x 0.1 s.
    report = fed(2.0, 0.1)
    waited_s = report.metrics["data_stall_s"]
    assert waited_s == pytest.approx(20 * (2 + 0.1) - 20 * 0.1, rel=0.1)
    assert report.bound_by.startswith("waiting for data")
    assert report.would_help[0].startswith("more CPUs for Ray Data")
    assert seconds(report, "steps that are kept") == pytest.approx(20 * 0.1, rel=0.05)


def test_data_that_are_quick_are_made_while_the_ranks_step() -> None:
    # 40 blocks of 0.5 s on two CPUs: 10 s, beside 20 steps of 1 s. For the first second the
    # executor does not know of its CPUs, and its tasks run one by one.
    report = fed(0.5, 1.0)
    assert report.metrics["data_stall_s"] < 4.0
    assert seconds(report, "steps that are kept") == pytest.approx(20, rel=0.02)
    operators = next(t for t in report.tables if t.title.startswith("Operators"))
    assert [row[:2] for row in operators.rows] == [("ReadRange->MapBatches(slow)", 40)]


def test_a_dataset_that_is_not_there_is_a_key_error() -> None:
    def loop() -> str:
        import ray

        try:
            ray.train.get_dataset_shard()
        except KeyError as error:
            return str(error)
        return ""

    result, _ = fit(loop)
    assert "Dataset shard for 'train' not found." in result.return_value


def test_workers_that_fit_nowhere_are_said_at_once() -> None:
    from raysim.rayapi.train import ControllerError

    with pytest.raises(ControllerError, match="9 workers of 1 CPU each do not fit"):
        fit(lambda: None, workers=9)
