"""``ray.data`` of programs: what functions see, what costs time, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.hardware import catalog
from raysim.rayapi.loader import run_program
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.data.specs import Source
from raysim.raylibs.data.stored import StoredFiles
from tests.raycore_parts import ray_cluster


def played(main: Any, *, cpus: int = 4, files: tuple[StoredFiles, ...] = ()) -> Any:
    """What a driver's function returns."""
    cluster = ray_cluster(cpus=cpus)
    cluster.env.files.extend(files)
    return run_program(main, cluster)[0]


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

    # 16 blocks of 500 rows are five calls of half a second each. In the first second, and in one
    # wave more for its odd task, the execution does not know yet what there is to use.
    waves = 16 / cpus * 2.5
    assert waves < played(main, cpus=cpus) < waves + 1 + 2.5


def test_a_worker_imports_the_library_once() -> None:
    """Eight blocks of no work: one second of one task at a time, and what is imported."""

    def main() -> list[float]:
        import time

        import ray

        ray.init()
        taken = []
        for _ in range(4):
            began = time.perf_counter()
            ray.data.range(8, override_num_blocks=1).materialize()
            taken.append(time.perf_counter() - began)
        return taken

    quick, slow = (
        run_program(main, ray_cluster(costs={"data_worker_core_s": imports_s}))[0]
        for imports_s in (0.01, 2.01)
    )
    assert slow[0] - quick[0] == pytest.approx(2.0, abs=0.1)
    assert slow[-1] == pytest.approx(quick[-1], abs=0.02)


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
    assert sorted(rows) == sorted(again) == list(range(5, 1_005))
    assert rows != sorted(rows)
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


def test_order_is_kept_around_a_sort_though_later_blocks_are_ready_first() -> None:
    def main() -> Any:
        import time

        import ray

        def slow(batch: Any) -> Any:
            time.sleep(2.0 if batch["id"][0] < 10 else 0.0)
            return batch

        ray.init()
        ds = ray.data.range(100, override_num_blocks=4)
        plain = [r["id"] for r in ds.map_batches(slow).iter_rows()]
        ordered = [r["id"] for r in ds.sort("id").map_batches(slow).iter_rows()]
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        assert not ds.context.execution_options.preserve_order  # a copy: it was made before
        ds = ray.data.range(100, override_num_blocks=4)
        return plain, ordered, [r["id"] for r in ds.map_batches(slow).iter_rows()]

    plain, ordered, asked = played(main)
    assert plain != sorted(plain)
    assert ordered == asked == list(range(100))


def test_columns_of_a_partitioned_folder_may_be_those_that_its_folders_say(tmp_path: Path) -> None:
    def main() -> Any:
        import ray

        ray.init()
        rows = ray.data.from_items([{"u": i % 2, "a": i, "b": -i} for i in range(6)])
        rows.write_parquet(str(tmp_path), partition_cols=["u"])
        asked = (["a"], ["u", "a"], ["u"])
        return [ray.data.read_parquet(str(tmp_path), columns=a).take_all() for a in asked]

    alone, both, folders = played(main)
    assert sorted(alone, key=lambda row: row["a"]) == [{"a": i} for i in range(6)]
    assert sorted(both, key=lambda row: row["a"]) == [{"u": str(i % 2), "a": i} for i in range(6)]
    assert sorted(row["u"] for row in folders) == ["0"] * 3 + ["1"] * 3


def test_groups_meet_wherever_their_rows_were() -> None:
    def main() -> Any:
        import ray

        ray.init()
        context = ray.data.DataContext.get_current()
        context.default_hash_shuffle_parallelism = 3
        ds = ray.data.range(500, override_num_blocks=6).map_batches(
            lambda b: {"k": b["id"] % 7, "v": b["id"] * 1.0}
        )
        return ds.groupby("k").aggregate(
            ray.data.aggregate.Sum("v"), ray.data.aggregate.Std("v"), ray.data.aggregate.Count()
        ).take_all()  # fmt: skip

    rows = played(main)
    values = np.arange(500.0)
    assert len(rows) == 7
    for row in rows:
        mine = values[np.arange(500) % 7 == row["k"]]
        assert row["sum(v)"] == mine.sum()
        assert row["std(v)"] == pytest.approx(mine.std(ddof=1))
        assert row["count()"] == len(mine)


def test_batches_are_made_while_the_driver_works() -> None:
    def main() -> Any:
        import time

        import ray

        def slow(batch: Any) -> Any:
            time.sleep(0.25)
            return batch

        ray.init()
        # One task at a time makes a batch in 0.25 s, a step takes 1 s: the first is waited for.
        ds = ray.data.range(1_000, override_num_blocks=10).map_batches(slow, concurrency=1)
        ds.take(1)
        waited = []
        asked = time.perf_counter()
        for _ in ds.iter_batches(batch_size=100):
            waited.append(time.perf_counter() - asked)
            time.sleep(1.0)
            asked = time.perf_counter()
        return waited

    waited = played(main)
    assert len(waited) == 10
    assert waited[0] > 0.25
    assert max(waited[1:]) < 0.05


def test_a_collate_function_works_ahead_of_the_loop() -> None:
    def main() -> float:
        import time

        import ray
        from ray.data.collate_fn import NumpyBatchCollateFn

        class Collate(NumpyBatchCollateFn):
            def __call__(self, batch: Any) -> Any:
                time.sleep(0.5)
                return batch["id"]

        ray.init()
        ds = ray.data.range(1_000, override_num_blocks=1).materialize()
        began = time.perf_counter()
        seen = 0
        for batch in ds.iter_torch_batches(batch_size=100, collate_fn=Collate()):
            seen += len(batch)
            time.sleep(0.5)
        assert seen == 1_000
        return time.perf_counter() - began

    # Ten batches of half a second each, one of them before the first step.
    assert played(main) == pytest.approx(5.5, rel=0.05)


def test_consumers_that_leave_early_stop_the_execution_and_begin_the_next_together() -> None:
    def main() -> Any:
        import ray

        made = []

        def noted(batch: Any) -> Any:
            made.append(1)
            return batch

        @ray.remote
        def consume(shard: Any) -> Any:
            for batch in shard.iter_batches(batch_size=10):
                assert len(batch["id"]) == 10
                break
            return sum(len(b["id"]) for b in shard.iter_batches(batch_size=10))

        ray.init()
        ds = ray.data.range(400, override_num_blocks=40).map_batches(noted)
        return ray.get([consume.remote(s) for s in ds.streaming_split(2, equal=True)])

    assert played(main) == [200, 200]


def test_blocks_of_materialised_data_go_with_the_last_dataset_of_them() -> None:
    def main() -> Any:
        import ray

        def held() -> float:
            used: float = ray.available_resources().get("object_store_memory", 0.0)
            return used

        ray.init()
        before = held()
        kept = ray.data.range(1_000_000, override_num_blocks=4).materialize()
        part = kept.split(2)[0]
        del kept
        ray.get(ray.remote(lambda: None).remote())
        during = held()
        assert part.count() == 500_000
        del part
        import time

        time.sleep(2.0)
        return before, during, held()

    before, during, after = played(main)
    assert before == after
    assert during <= before


def test_what_is_read_from_files_comes_over_the_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1_000, 1_000)))
    np.save(tmp_path / "b.npy", np.ones((500, 1_000)))

    def main() -> Any:
        import time

        import ray

        ray.init()
        ray.data.range(4).materialize()
        ds = ray.data.read_numpy(str(tmp_path), override_num_blocks=2)
        began = time.perf_counter()
        found = ds.materialize()
        took = time.perf_counter() - began
        return took, [d.count() for d in found.split(2)], ds.count()

    took, rows, count = played(main)
    assert rows == [1_000, 500]  # whole files
    assert count == 1_500
    ((disk, _),) = ray_cluster(cpus=4).env.nodes[0].spec.disks
    assert took > 12e6 / disk.read_bytes_per_s


def test_files_that_a_scenario_describes_are_read_at_their_bucket_s_pace() -> None:
    source = Source(rows=10_000, row_bytes=10_000.0, files=10, stored_row_bytes=5_000.0)
    there = StoredFiles(
        at="s3://b/train", source=source, bucket=catalog.object_storage("s3"),
        columns=(("image", "uint8", (100, 100)), ("label", "int64", ())),
    )  # fmt: skip

    def main() -> Any:
        import time

        import ray

        ray.init()
        ds = ray.data.read_parquet("s3://b/train/")
        began = time.perf_counter()
        rows = sum(len(b["label"]) for b in ds.iter_batches(batch_size=500))
        return rows, ds.columns(), ds.take_batch(2)["image"].shape, time.perf_counter() - began

    rows, columns, shape, took = played(main, files=(there,))
    assert rows == 10_000
    assert columns == ["image", "label"]
    assert shape == (2, 100, 100)
    assert took > 0.1
    with pytest.raises(NotEmulatedError, match=r"or rows that are described"):
        played(main)


@pytest.mark.parametrize("name", ["write_tfrecords", "to_tf"])
def test_what_is_not_there_says_so(name: str) -> None:
    def main() -> None:
        import ray

        ray.init()
        getattr(ray.data.range(4), name)

    with pytest.raises(NotEmulatedError, match=rf"ray.data.Dataset.{name} is not emulated"):
        played(main)


def test_sources_that_are_not_there_say_so() -> None:
    def main() -> None:
        import ray

        ray.init()
        ray.data.read_mongo("mongodb://somewhere", "database", "collection")

    said = r"ray.data read_mongo\('mongodb://somewhere'\).*--set 'files=\[\{at: \"mongodb://somewhere\""
    with pytest.raises(NotEmulatedError, match=said):
        played(main)


def test_a_bucket_that_nobody_describes_says_what_to_say() -> None:
    def main() -> None:
        import ray

        ray.init()
        ray.data.read_parquet(["s3://somewhere/a", "s3://somewhere/b"])

    with pytest.raises(NotEmulatedError, match=r"files=\[\{at: \"s3://somewhere/a\", rows: "):
        played(main)


@pytest.mark.parametrize("at", ["read_iceberg", "catalog.", "s3://lake/"])
def test_tables_are_described_by_their_call_or_by_what_it_names(at: str) -> None:
    there = StoredFiles(
        at=at, source=Source(rows=300, row_bytes=8.0), columns=(("x", "float32", (2,)),)
    )

    def main() -> Any:
        import ray

        ray.init()
        ds = ray.data.read_iceberg(
            table_identifier="catalog.table", catalog_kwargs={"type": "glue"},
            row_filter=None, selected_fields=("x",), snapshot_id=1,
        ) if at != "s3://lake/" else ray.data.read_delta("s3://lake/table")  # fmt: skip
        return ds.count(), ds.take(1)[0]["x"].shape

    assert played(main, files=(there,)) == (300, (2,))


def test_files_of_a_source_of_ones_own_are_described_likewise() -> None:
    source = Source(rows=300, row_bytes=8.0)
    there = StoredFiles(at="s3://own/", source=source, columns=(("x", "float32", (2,)),))

    def main() -> Any:
        import ray
        from ray.data.datasource import FileBasedDatasource

        class Own(FileBasedDatasource):
            def _read_stream(self, f: Any, path: str) -> Any:
                raise AssertionError("its bytes are not here")

        ray.init()
        ds = ray.data.read_datasource(Own("s3://own/files", file_extensions=["own"]))
        return ds.count(), ds.take(1)[0]["x"].shape

    assert played(main, files=(there,)) == (300, (2,))
    with pytest.raises(NotEmulatedError, match=r"files=\[\{at: \"s3://own/files\", rows: "):
        played(main)


def test_expressions_are_one_operator_each_and_classes_among_them_have_actors() -> None:
    def main() -> Any:
        import ray
        from ray.data.datatype import DataType
        from ray.data.expressions import col, udf

        @udf(return_dtype=DataType.int64())
        class Add:
            def __init__(self, k: int) -> None:
                self.k = k

            def __call__(self, numbers: Any) -> Any:
                return numbers.to_numpy() + self.k

        ray.init()
        numbers = ray.data.range(4).filter(expr=(col("id") > 1) & ~(col("id") == 3))
        made = numbers.with_columns({"more": Add(3)(col("id")), "id": col("id") * 10})
        return [(o.name, o.actors) for o in made._spec.operations], made.take_all()

    operations, rows = played(main)
    assert operations == [
        ("Filter((col('id') > 1) & ~(col('id') == 3))", False), ("Project", True),
    ]  # fmt: skip
    assert rows == [{"id": 20, "more": 5}]


@pytest.mark.parametrize("name", ["random", "unnest", "monotonically_increasing_id"])
def test_expressions_that_are_not_there_are_refused_by_name(name: str) -> None:
    def main() -> None:
        from ray.data import expressions

        getattr(expressions, name)()

    with pytest.raises(NotEmulatedError, match=rf"ray\.data\.expressions\.{name} is not emulated"):
        played(main)


def test_stats_say_what_the_last_execution_did() -> None:
    def main() -> tuple[str, str, str]:
        import time

        import ray

        def slow(row: Any) -> Any:
            time.sleep(0.01)
            return row

        ray.init()
        ds = ray.data.range(100, override_num_blocks=4).map(slow)
        before = ds.stats()
        ds.materialize()  # workers have started then
        made = ds.materialize()
        again = ray.data.range(10, override_num_blocks=2)
        assert sum(1 for _ in again.iter_rows()) == 10
        return before, made.stats(), again.stats()

    before, made, again = played(main)
    assert before == ""
    lines = made.splitlines()
    assert lines[0].startswith(
        "Operator 1 ReadRange->Map(slow): 4 tasks executed, 4 blocks produced in 1."
    )
    assert "* Output num rows per block: 25 mean, 100 total" in lines
    # 25 rows of 10 ms are what a task takes; for a second they run one by one
    (mean,) = (float(x.split()[4].removesuffix("ms")) for x in lines if "Remote wall" in x)
    assert 250 < mean < 300
    (rate,) = (float(x.split()[-2]) for x in lines[-2:] if "throughput: " in x)
    assert 80 < rate < 100
    assert again.startswith("Operator 1 ReadRange: 2 tasks executed, 2 blocks produced in ")
