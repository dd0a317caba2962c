"""Arrows of a recorded step: ranks that meet, and what an operation waited for."""

from __future__ import annotations

from collections import defaultdict

from raysim.kernel.record import ColumnRecorder, Span
from raysim.results.traces.layout import flows_of
from raysim.training.recording import record_outcome
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, plan, play


def arrows(*, exact: bool = False, **options: object) -> list[list[Span]]:
    """Spans of each arrow by time."""
    records = ColumnRecorder()
    where = cluster(nodes=1, gpus=2)
    record_outcome(play(plan(mesh=Mesh(dp=2), **options), where, exact=exact), records)  # type: ignore[arg-type]
    found: dict[int, list[Span]] = defaultdict(list)
    for span in records.spans():
        for flow in flows_of(span.args):
            found[flow].append(span)
    return [sorted(spans, key=lambda s: s.start_ns) for spans in found.values()]


def meetings(found: list[list[Span]]) -> list[list[Span]]:
    return [spans for spans in found if len({span.track[:2] for span in spans}) > 1]


def test_ranks_that_meet_in_a_collective_share_an_arrow() -> None:
    met = meetings(arrows(exact=True, stage=2))
    assert met
    for spans in met:
        assert {span.category for span in spans} == {"collective"}
        assert len({(s.name, s.args["op"], s.args["bytes"]) for s in spans if s.args}) == 1
        assert len({span.end_ns for span in spans}) == 1
        assert [span.track[1] for span in sorted(spans)] == ["gpu-0", "gpu-1"]


def test_one_rank_that_stands_for_all_meets_nobody() -> None:
    assert meetings(arrows(stage=2)) == []


def test_what_waited_begins_where_what_it_waited_for_ended() -> None:
    found = arrows(stage=3)
    assert found
    for first, last in found:
        assert first.track != last.track
        assert first.track[:2] == last.track[:2]
        if last.track[-1] == "host":  # a synchronisation lasts until then
            assert first.end_ns == last.end_ns
        else:
            assert first.end_ns == last.start_ns
