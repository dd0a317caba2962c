"""What a program's own code costs: charged once, by arguments, and with the memory it needs."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.perf.ray_core import RayCosts
from raysim.rayapi.compute import MAX_KINDS, Compute, kind_of
from raysim.units import MIB
from tests.rayapi_parts import on_demand, run

HEAD = "function,arguments,slice,calls,mean_core_s\n"


def measured(main):
    return run(main, compute=Compute("measured", slowdown=100.0))


def test_measured_code_is_paid_once_whatever_follows_it() -> None:
    """The same additions before nothing, a call of Ray and a sleep of a second."""

    def main():
        import ray

        def spin(then):
            began = time.perf_counter()
            sum(range(2_000_000))
            then()
            return time.perf_counter() - began

        ray.init(num_cpus=1)
        thens = (lambda: None, lambda: ray.put(1), lambda: time.sleep(1))
        rounds = [[spin(then) for then in thens] for _ in range(12)]  # all share bad moments
        alone, put, nap = map(min, zip(*rounds, strict=True))
        return alone, put, nap - 1

    alone_s, put_s, nap_s = measured(main)
    assert alone_s > 0.5
    assert put_s < 1.6 * alone_s
    assert nap_s < 1.6 * alone_s


def test_a_table_tells_calls_apart_by_their_arguments(tmp_path) -> None:
    """Of arguments that it does not have, the mean over all calls: (3 x 5 + 1) / 4 s."""
    table = tmp_path / "compute.csv"
    table.write_text(HEAD + "work,1,0,3,5.0\nwork,2,0,1,1.0\n")

    def main():
        import ray

        @ray.remote
        def work(n):
            return n

        def took(n):
            began = time.time()
            ray.get(work.remote(n))
            return time.time() - began

        ray.init(num_cpus=1)
        took(2)
        return [took(n) for n in (1, 2, 3)]

    assert run(main, compute=Compute("table", table=table)) == pytest.approx([5, 1, 4], abs=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "function,slice,calls,mean_core_s\nwork,0,4,3.0\n",
        "function,slice,mean_core_s\nwork,0,3.0\n",
    ],
)
def test_a_table_without_arguments_is_of_all_calls(tmp_path, text) -> None:
    table = tmp_path / "compute.csv"
    table.write_text(text)

    def main():
        import ray

        @ray.remote
        def work(n):
            return n

        ray.init(num_cpus=1)
        ray.get(work.remote(0))
        began = time.time()
        ray.get(work.remote(1))
        return time.time() - began

    assert run(main, compute=Compute("table", table=table)) == pytest.approx(3, abs=0.05)


def test_arguments_in_short() -> None:
    array = np.zeros(1000)
    assert kind_of((4, 8192), {}) == "4 8192"
    assert kind_of((array, array, "a"), {"b": None}) == "2*8000B 'a' b=None"
    assert kind_of(("x" * 1000, b"123", [1]), {}) == "1000c 3B list"
    assert kind_of(range(1000), {}) == "1000 arguments"


def test_an_argument_that_refuses_what_it_does_not_have_is_named_by_its_type() -> None:
    class Refuses:
        def __getattr__(self, name: str) -> Any:
            raise NotImplementedError(name)

    assert kind_of((Refuses(),), {}) == "Refuses"


@pytest.mark.parametrize(("kinds", "rows"), [(MAX_KINDS, MAX_KINDS), (MAX_KINDS + 1, 1)])
def test_many_arguments_share_a_row(tmp_path: Path, kinds: int, rows: int) -> None:
    def main():
        import ray

        @ray.remote
        def work(n):
            return n

        ray.init(num_cpus=1)
        ray.get([work.remote(n) for n in range(kinds)])

    compute = Compute("measured")
    run(main, compute=compute)
    compute.write(tmp_path / "compute.csv")
    with (tmp_path / "compute.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["function"] == "work"]
    assert len({row["arguments"] for row in found}) == rows
    assert sum(int(row["calls"]) for row in found if row["slice"] == "0") == kinds


def test_first_arrays_of_a_process_need_memory(tmp_path) -> None:
    """Once, and not on top of code that takes longer; a view of an argument needs none."""
    size = 64 * MIB
    table = tmp_path / "compute.csv"

    def main():
        import ray

        @ray.remote
        class Maker:
            def make(self):
                return np.ones(size, np.uint8)

            def same(self, array):
                return array

        def took(call, *args):
            began = time.time()
            ray.wait([call.remote(*args)])
            return time.time() - began

        ray.init(num_cpus=1)
        first, second = Maker.remote(), Maker.remote()
        array = ray.put(np.ones(size, np.uint8))
        return [took(first.make), took(first.make), took(second.same, array)]

    def more_s(rows: str) -> list[float]:
        table.write_text(HEAD + rows)
        costly = run(main, on_demand(cpus=8), compute=Compute("table", table=table))
        free = run(main, on_demand(cpus=8), compute=Compute("declared"))
        return [a - b for a, b in zip(costly, free, strict=True)]

    costs = RayCosts()
    new_s = 6 * size * (1 / costs.first_touch_bytes_per_s - 1 / costs.memcpy_bytes_per_s)
    assert more_s("") == pytest.approx([new_s, 0, 0], abs=0.003)
    assert more_s("Maker.make,,0,1,0.5\n") == pytest.approx([0.5, 0.5, 0], abs=0.01)
