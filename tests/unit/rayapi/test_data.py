"""``ray.data`` of programs: what functions see, what costs time, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.rayapi.loader import run_program
from raysim.rayapi.unsupported import NotEmulatedError
from tests.raycore_parts import ray_cluster


def played(main: Any, *, cpus: int = 4) -> Any:
    """What a driver's function returns."""
    return run_program(main, ray_cluster(cpus=cpus))[0]


@pytest.mark.parametrize("cpus", [2, 4, 8])
def test_batches_that_sleep_take_as_many_waves_as_there_are_cores(cpus: int) -> None:
    def main() -> float:
        import time

        import ray

        def slow(batch: Any) -> Any:
            time.sleep(0.5)
            return batch

        ray.init()
        ray.data.range(8, override_num_blocks=8).map_batches(slow).materialize()
        began = time.perf_counter()
        ray.data.range(8_000, override_num_blocks=16).map_batches(
            slow, batch_size=100
        ).materialize()
        return time.perf_counter() - began

    # 16 blocks of 500 rows are five calls of half a second each.
    assert played(main, cpus=cpus) == pytest.approx(16 / cpus * 2.5, rel=0.1)


def test_rows_pass_functions_classes_and_shuffles() -> None:
    def main() -> Any:
        import ray

        class Add:
            def __init__(self, k: int) -> None:
                self.k = k

            def __call__(self, batch: Any) -> Any:
                return {"id": batch["id"] + self.k}

        ray.init()
        ds = ray.data.range(1_000, override_num_blocks=7)
        added = ds.map_batches(Add, fn_constructor_args=(5,), concurrency=2, batch_size=64)
        mixed = added.random_shuffle(seed=1)
        rows = [row["id"] for row in mixed.take_all()]
        return (
            rows,
            [row["id"] for row in mixed.take_all()],
            added.filter(lambda r: r["id"] < 8).count(),
        )

    rows, again, few = played(main)
    assert sorted(rows) == list(range(5, 1_005))
    assert rows == again != sorted(rows)
    assert few == 3


def test_a_dataset_is_run_again_unless_it_is_materialised() -> None:
    def main() -> Any:
        import time

        import ray

        def slow(batch: Any) -> Any:
            time.sleep(1.0)
            return batch

        def took(ds: Any) -> float:
            began = time.perf_counter()
            assert ds.map_batches(lambda b: b).count() == 400
            return time.perf_counter() - began

        ray.init()
        ds = ray.data.range(400, override_num_blocks=4).map_batches(slow)
        return took(ds), took(ds), took(ds.materialize())

    first, second, kept = played(main)
    assert first > 1.0
    assert second > 1.0
    assert kept < 0.5


@pytest.mark.parametrize("name", ["sort", "groupby", "write_parquet", "streaming_split"])
def test_what_is_not_there_says_so(name: str) -> None:
    def main() -> None:
        import ray

        ray.init()
        getattr(ray.data.range(4), name)

    with pytest.raises(NotEmulatedError, match=rf"ray.data.Dataset.{name} is not emulated"):
        played(main)


def test_files_are_refused_by_name() -> None:
    def main() -> None:
        import ray

        ray.init()
        ray.data.read_parquet("s3://a")

    with pytest.raises(NotEmulatedError, match=r"ray\.data\.read_parquet is not emulated"):
        played(main)
