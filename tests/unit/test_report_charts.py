"""Bars, slices and memory curves as data."""

from __future__ import annotations

import itertools

import pytest

from raysim.kernel.record import Counter, Span
from raysim.report import charts

GPU = ("node-0", "gpu-0")
COMPUTE = (*GPU, "compute")


def spans(*rows: tuple[int, int]) -> list[Span]:
    return [Span(COMPUTE, f"op {i}", "forward", a, b, {"step": 1}) for i, (a, b) in enumerate(rows)]


def test_stacked_bars_touch_and_are_shares_of_the_scale() -> None:
    bars = charts.stacked([("a", "A", 10.0), ("b", "B", 30.0)], 80.0)
    assert [(b.left, b.width) for b in bars] == [(0.0, 0.125), (0.125, 0.375)]


def test_stacked_of_nothing_has_no_width() -> None:
    assert charts.stacked([("a", "A", 0.0)], 0.0)[0].width == 0.0


def test_tornado_puts_savings_left_of_the_middle() -> None:
    assert charts.tornado([-0.2, 0.1]) == [(0.0, 0.5), (0.5, 0.25)]
    assert charts.tornado([0.0]) == [(0.5, 0.0)]


def test_gpus_are_in_the_order_of_their_numbers() -> None:
    tracks = [("node-10", "gpu-0", "compute"), ("node-2", "gpu-10", "compute"),
              ("node-2", "gpu-9", "compute"), ("node-2", "host")]  # fmt: skip
    found = charts.gpu_tracks(tracks)
    assert found == [("node-2", "gpu-9"), ("node-2", "gpu-10"), ("node-10", "gpu-0")]


def test_step_windows_by_number() -> None:
    rows = [Span(COMPUTE, "a", "forward", 5, 9, {"step": 2}),
            Span(COMPUTE, "b", "optimizer", 8, 12, {"step": 2}),
            Span(COMPUTE, "c", "forward", 0, 5, {"step": 1}),
            Span(COMPUTE, "set-up", "host", 0, 99, None)]  # fmt: skip
    assert charts.step_windows(rows) == {1: (0, 5), 2: (5, 12)}


def test_what_is_fetched_ahead_does_not_begin_the_step() -> None:
    rows = [Span((*GPU, "h2d"), "inputs", "copy", 0, 1, {"step": 2}),
            Span(COMPUTE, "a", "forward", 5, 9, {"step": 2})]  # fmt: skip
    assert charts.step_windows(rows) == {2: (5, 9)}


def test_the_step_where_memory_peaked_is_shown_else_the_last() -> None:
    windows = {1: (0, 10), 2: (10, 20), 3: (20, 30)}
    assert charts.choose_step(windows, 15) == 2
    assert charts.choose_step(windows, None) == 3
    assert charts.choose_step(windows, 99) == 3
    assert charts.choose_step({}, 5) is None


def test_timeline_columns_give_back_the_slices() -> None:
    given = spans((100, 150), (150, 170), (400, 401))
    line = charts.timeline(given, [charts.Gpu(GPU, "rank 0")])
    (row,) = line["groups"][0]["rows"]
    starts = [line["t0"] + s for s in itertools.accumulate(row["start"])]
    assert [(a, a + d) for a, d in zip(starts, row["ns"], strict=True)] == [
        (s.start_ns, s.end_ns) for s in given
    ]
    assert [line["names"][n] for n in row["name"]] == ["op 0", "op 1", "op 2"]
    assert line["span"] == 301


def test_timeline_leaves_other_gpus_out() -> None:
    other = Span(("node-0", "gpu-1", "compute"), "x", "forward", 0, 9)
    line = charts.timeline([*spans((1, 2)), other], [charts.Gpu(GPU, "rank 0")])
    assert line["total"] == 1


def test_too_many_slices_keeps_the_longest_of_the_view_and_counts_the_rest() -> None:
    given = spans(
        (0, 1_000_000_000), (2_000_000_000, 2_000_000_005), (2_000_000_010, 2_000_000_030)
    )
    line = charts.timeline(
        given, [charts.Gpu(GPU, "rank 0")], (2_000_000_000, 2_000_000_030), max_slices=2
    )
    assert (line["drawn"], line["total"], line["missed_s"]) == (2, 3, 1.0)
    assert (line["view_drawn"], line["view_total"]) == (2, 2)
    shade = line["groups"][0]["rows"][0]["shade"]
    part = -(-line["span"] // charts.SHADES)
    assert sum(share for _, _, share in shade) * part == pytest.approx(1e9 * 1000, rel=0.01)
    assert sorted(line["names"]) == ["op 1", "op 2"]


def test_streams_stand_as_in_a_profiler() -> None:
    streams = ["h2d", "comm:pp", "compute", "comm:dp", "host"]
    given = [Span((*GPU, s), "x", "forward", 0, 1) for s in streams]
    line = charts.timeline(given, [charts.Gpu(GPU, "rank 0")])
    assert [r["label"] for r in line["groups"][0]["rows"]] == [
        "host", "compute", "comm:dp", "comm:pp", "h2d"]  # fmt: skip


def test_a_slice_says_its_bytes_and_bandwidth() -> None:
    args = {"op": "all_gather", "bytes": 2**30, "bus_bytes_per_s": 341e9, "micro_batch": 3}
    line = charts.timeline(
        [Span((*GPU, "comm:dp"), "layer 3", "collective", 0, 9, args)], [charts.Gpu(GPU, "rank 0")]
    )
    assert line["infos"] == ["all_gather, micro-batch 3, 1.00 GiB, bus bandwidth 341 GB/s"]


def test_busy_counts_only_what_lies_in_the_step() -> None:
    (row,) = charts.busy(spans((0, 10), (10, 30), (30, 90)), [charts.Gpu(GPU, "rank 0")], (5, 45))
    assert row.busy_s == pytest.approx(40e-9)
    assert row.frac == 1.0
    assert row.by_category == [("forward", pytest.approx(40e-9))]


def memory(*rows: tuple[int, str, float]) -> list[charts.Change]:
    written = [Counter(GPU, f"memory/{key}", t, value) for t, key, value in rows]
    return charts.memory_changes([*written, Counter(("node-9", "gpu-9"), "link/nic-0", 0, 1.0)])[
        GPU
    ]


def test_memory_holds_a_category_until_it_changes() -> None:
    curve = charts.memory_curve(
        memory((10, "parameter", 4096), (20, "activation", 2048), (30, "activation", 0)), 100
    )
    assert curve["categories"] == ["parameter", "activation"]
    assert curve["kib"] == [[4, 4, 4], [0, 2, 0]]
    assert list(itertools.accumulate(curve["t"])) == [10, 20, 30]
    assert curve["peak"] == {"t": 20, "bytes": 6144}


def test_a_bucket_that_comes_and_goes_within_a_moment_is_seen() -> None:
    curve = charts.memory_curve(
        memory((10, "parameter", 4096), (20, "bucket", 8192), (20, "bucket", 0)), 100
    )
    assert curve["kib"] == [[4, 4, 4], [0, 8, 0]]
    assert list(itertools.accumulate(curve["t"])) == [10, 20, 20]
    assert curve["peak"] == {"t": 20, "bytes": 12288}


def test_memory_is_told_apart_by_gpu() -> None:
    rows = [Counter(("node-0", f"gpu-{i}"), "memory/parameter", 0, i) for i in (1, 2)]
    assert charts.memory_changes(rows) == {
        ("node-0", "gpu-1"): [(0, "parameter", 1)],
        ("node-0", "gpu-2"): [(0, "parameter", 2)],
    }


def test_a_long_memory_curve_is_thinned_but_keeps_its_peaks() -> None:
    rows = [(t, "activation", 1024.0 * (t % 97)) for t in range(20_000)]
    rows[12_345] = (12_345, "activation", 1024.0 * 5000)
    curve = charts.memory_curve(memory(*rows), max_points=200)
    assert curve["kept"] <= 204 < curve["moments"] == 20_000
    assert curve["peak"] == {"t": 12_345, "bytes": 1024 * 5000}
    times = list(itertools.accumulate(curve["t"]))
    assert max(zip(curve["kib"][0], times, strict=True)) == (5000, 12_345)
    assert times == sorted(times)
    assert times[-1] == 19_999


def test_what_ran_at_a_moment() -> None:
    assert charts.running_at(spans((0, 10), (10, 30)), GPU, 10) == "op 1 (20 ns)"
    assert charts.running_at(spans((0, 10)), GPU, 10) is None


def test_every_category_has_a_colour_and_no_two_are_alike() -> None:
    for theme in (0, 1):  # a GPU's contexts and a host's processes never stand side by side
        used = [c[theme] for k, c in charts.MEMORY_COLORS.items() if k != "process"]
        assert len(set(used)) == len(used)
        slices = [c[theme] for c in charts.SLICE_COLORS.values()]
        assert len(set(slices)) == len(slices)
