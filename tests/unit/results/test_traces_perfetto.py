"""Perfetto traces read back: nesting, order, counters with their sums, arrows, instants."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.kernel.record import ColumnRecorder, Span
from raysim.results.traces import layout
from raysim.results.traces.nesting import ENCLOSING, enclosed, modules
from raysim.results.traces.perfetto import write_pftrace
from raysim.training.recording import record_outcome
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.perfetto_reader import Trace, read
from tests.training_parts import plan, play
from tests.unit.result_cases import recording


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return written(recording(), tmp_path)


def written(records: ColumnRecorder, tmp_path: Path) -> Trace:
    return read(write_pftrace(records, tmp_path / "t.pftrace"))


def recorded(records: ColumnRecorder) -> list[tuple[object, ...]]:
    return sorted((s.track, s.name, s.category, s.start_ns, s.end_ns) for s in records.spans())


def drawn(trace: Trace, records: ColumnRecorder) -> list[tuple[object, ...]]:
    """Slices that are no enclosing ones, on the track without the number of its lane."""
    kinds = {s.category for s in records.spans()}
    return sorted(
        ((*s.track[:-1], s.track[-1].partition(" (")[0]), *s[1:5])
        for s in trace.slices
        if s.category in kinds and not (s.category == s.name == "recompute")
    )


def played(**options: object) -> ColumnRecorder:
    records = ColumnRecorder()
    record_outcome(play(plan(**options)), records)  # type: ignore[arg-type]
    return records


def test_slices_come_back_as_recorded_and_nothing_is_wrong(trace: Trace) -> None:
    assert not trace.stats
    assert drawn(trace, recording()) == recorded(recording())


@pytest.mark.parametrize(
    "options",
    [
        {"stage": 3, "activation_checkpointing": "full"},
        {"stage": 1, "mesh": Mesh(pp=2, dp=2, tp=2), "gradient_accumulation_steps": 4,
         "pipeline": PipelineSettings(stages=2, partition_method="uniform")},
    ],
    ids=["zero3", "pipeline"],
)  # fmt: skip
def test_a_job_is_clean_whole_and_nested(options: dict[str, object], tmp_path: Path) -> None:
    records = played(**options)
    trace = written(records, tmp_path)
    assert not trace.stats
    assert drawn(trace, records) == recorded(records)
    assert len(trace.instants) == len(records.instants())
    sums = [s for s in trace.counters if s.track[-1] == layout.TOTAL]
    assert len(trace.counters) - len(sums) == len(records.counters())
    kernels = [s for s in trace.slices if s.category in {"forward", "backward", "recompute"}]
    deep = next(s for s in kernels if s.name == "model.layers.1.mlp")
    assert deep.around[0].startswith("step ")
    assert deep.around[1] == f"micro-batch {deep.args['micro_batch']} forward"
    assert deep.around[2:4] == ("model", "model.layers.1")
    layer = next(s for s in kernels if s.name == "model.layers.1")
    assert layer.around[2:] == ("model", "model.layers.1"), "its residual sum lies within it"
    again = {s.around[2] for s in kernels if s.category == "recompute" and s.name != "recompute"}
    assert again == ({"recompute"} if "activation_checkpointing" in options else set())
    arrows = {(a.name.split()[0], b.name.split()[0]) for a, b in trace.flows if a.category == "p2p"}
    assert bool(arrows) == ("mesh" in options)
    assert all(a.start_ns <= b.start_ns for a, b in trace.flows)


def test_streams_stand_below_their_gpu_and_the_gpu_below_its_node(trace: Trace) -> None:
    below = ("node-0",), ("node-0", "gpu-1"), ("node-0", "gpu-1", "compute")
    places = [trace.order.index(track) for track in below]
    assert places == sorted(places)


def test_memory_counters_are_sizes_and_have_a_sum(trace: Trace) -> None:
    activation, total = ("node-0", "gpu-1", "memory/activation"), ("node-0", "gpu-1", "memory")
    values = [(s.t_ns, s.value) for s in trace.counters if s.track == activation]
    assert values == [(30, 2**30), (90, 0), (130, 2**30), (190, 0)]
    assert values == [(s.t_ns, s.value) for s in trace.counters if s.track == total]
    assert trace.units[activation] == trace.units[total] == "SIZE_BYTES"
    assert trace.units["network", "link/node-0 nic 1 out"] == "B/s"
    below = [track for track in trace.order if track[:2] == total[:2]]
    assert below[1] == total, "the sum stands above the streams"


def test_the_sum_is_of_all_categories_of_a_gpu(tmp_path: Path) -> None:
    record = ColumnRecorder()
    for t, name, value in ((0, "a", 5), (1, "b", 7), (1, "a", 0), (2, "b", 1)):
        record.counter(("node-0", "gpu-0"), f"memory/{name}", t, value)
    record.counter(("node-0",), "memory/object_store", 0, 3)
    trace = written(record, tmp_path)
    sums = [(s.t_ns, s.value) for s in trace.counters if s.track[-1] == layout.TOTAL]
    assert sums == [(0, 5), (1, 12), (1, 7), (2, 1)], "a moment's most, and its last"


def test_arrows_go_from_send_to_receive(trace: Trace) -> None:
    ends = [(a.track[0], a.name, b.track[0], b.name) for a, b in trace.flows]
    assert ends == [("node-0", "send", "node-1", "recv")] * 2


def test_an_arrow_goes_through_all_its_spans_by_time_and_ends_at_the_last(tmp_path: Path) -> None:
    record = ColumnRecorder()
    for node, start in ((0, 5), (1, 0), (2, 5)):
        track = (f"node-{node}", "gpu-0", "comm:dp")
        record.span(track, f"n{node}", "collective", start, 10, {"flow": (1, 2 + node)})
    trace = written(record, tmp_path)
    assert not trace.stats
    assert [(a.name, b.name) for a, b in trace.flows] == [("n1", "n0"), ("n0", "n2")]


def test_arguments_are_kept_with_their_types(trace: Trace) -> None:
    reduce = next(s for s in trace.slices if "op" in s.args)
    assert reduce.args == {"step": 0, "op": "all_reduce", "bytes": 4096, "bus_bytes_per_s": 1e9}


def test_slices_that_touch_or_have_no_length_are_drawn(tmp_path: Path) -> None:
    record = ColumnRecorder()
    for start, end in ((0, 10), (10, 10), (10, 20)):
        record.span(("n", "gpu-0", "host"), f"{start}-{end}", "host", start, end)
    trace = written(record, tmp_path)
    assert not trace.stats
    assert sorted((s.name, s.start_ns, s.end_ns) for s in trace.slices) == [
        ("0-10", 0, 10), ("10-10", 10, 10), ("10-20", 10, 20),
    ]  # fmt: skip


def test_overlapping_spans_get_a_second_lane() -> None:
    def span(start: int, end: int) -> Span:
        return Span(("n", "g", "host"), f"{start}-{end}", "host", start, end)

    made = layout.lanes([span(0, 10), span(2, 5), span(5, 12), span(12, 15), span(1, 11)])
    assert [[s.name for s in lane] for lane in made] == [
        ["0-10", "2-5", "12-15"],
        ["1-11"],
        ["5-12"],
    ]


def test_nodes_and_gpus_are_in_natural_order(tmp_path: Path) -> None:
    record = ColumnRecorder()
    for node in (10, 2):
        for stream in ("d2h", "comm:dp", "compute"):
            record.span((f"node-{node}", "gpu-0", stream), "x", "forward", 0, 1)
    streams = ("compute", "comm:dp", "d2h")
    expected = [(n, "gpu-0", s) for n in ("node-2", "node-10") for s in streams]
    assert list(layout.tracks(record)) == expected
    assert [t for t in written(record, tmp_path).order if len(t) == 3] == expected


def kernel(name: str, start: int, category: str = "forward", batch: int | None = 0) -> Span:
    args = {"step": 0} | ({} if batch is None else {"micro_batch": batch})
    return Span(("n", "g", "compute"), name, category, start, start + 10, args)


def test_neighbours_share_what_encloses_them() -> None:
    spans = [
        kernel("m.layers.0.a", 0), kernel("m.layers.0.b", 10), kernel("m.layers.1.a", 20),
        kernel("m.layers.1.a", 40, "recompute"), kernel("m.layers.1.a", 50, "backward"),
        kernel("send", 60, "p2p"), kernel("adam", 70, "optimizer", None),
    ]  # fmt: skip
    made = [(s.name, s.start_ns, s.end_ns) for s in enclosed(spans) if s not in spans]
    assert made == [
        ("step 0", 0, 80),
        ("micro-batch 0 forward", 0, 30), ("m", 0, 30), ("m.layers.0", 0, 20),
        ("m.layers.1", 20, 30),
        ("micro-batch 0 backward", 40, 60), ("recompute", 40, 50), ("m", 40, 50),
        ("m.layers.1", 40, 50), ("m", 50, 60), ("m.layers.1", 50, 60),
    ]  # fmt: skip
    assert {s.category for s in enclosed(spans) if s not in spans} == set(ENCLOSING)
    assert [s for s in enclosed(spans) if s in spans] == spans


def test_what_overlaps_or_has_no_pass_is_not_enclosed() -> None:
    nested = [kernel("a.b", 0), kernel("a.c", 5)]
    assert enclosed(nested) == nested
    host = [kernel("zero_grad", 0, "host")]
    assert enclosed(host) == host


def test_modules_lead_to_the_parent_of_what_runs() -> None:
    assert modules("model.layers.0.mlp.up_proj") == (
        "model", "model.layers.0", "model.layers.0.mlp",
    )  # fmt: skip
    assert modules("model.layers.0") == ("model",)
    assert modules("0.linear") == ("0",)
    assert modules("lm_head") == modules("loss of a.b") == ()
