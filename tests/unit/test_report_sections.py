"""What sections of the page say, by hand: waterfall, money, links, parity, the peak in words."""

from __future__ import annotations

import pytest

from raysim.kernel.record import Span
from raysim.report import links, money, parity, peaks, step
from raysim.units import GIB
from tests.unit import report_cases


def test_the_waterfall_begins_at_the_peak_and_ends_at_the_step() -> None:
    """MFU 45.3 % of 8.93 s is 4.05 s at peak; kernels took 8.2 s."""
    found = step.waterfall(report_cases.ddp().summary)
    assert found.from_peak
    keys = [part.bar.key for part in found.parts]
    assert keys[:3] == ["ideal", "compute", "exposed_collectives"]
    ideal, below = (part.bar.value for part in found.parts[:2])
    assert ideal == pytest.approx(0.453 * 8.93)
    assert ideal + below == pytest.approx(8.2)
    assert found.parts[-1].end_s == pytest.approx(8.93)
    for before, after in zip(found.parts, found.parts[1:], strict=False):
        assert after.bar.left == pytest.approx(before.bar.left + before.bar.width)


@pytest.mark.parametrize("mfu", [None, 0, 0.95, -1, "much"])
def test_kernels_stay_whole_where_no_share_of_the_peak_explains_them(mfu: object) -> None:
    """At an MFU of 95 % the ideal time would be longer than the kernels were."""
    summary = report_cases.ddp().summary
    summary["throughput"]["mfu"] = mfu
    found = step.waterfall(summary)
    assert not found.from_peak
    assert found.parts[0].bar.value == pytest.approx(8.2)


def test_ten_per_cent_more_of_an_input() -> None:
    found = step.sensitivity({"sensitivity": [{"input": "FLOP/s", "elasticity": -1.0}]})
    assert found[0].delta == pytest.approx(1 / 1.1 - 1)
    assert (found[0].left, found[0].width) == (0.0, 0.5)
    assert step.sensitivity({"sensitivity": None}) == []


def test_every_dollar_goes_somewhere() -> None:
    for case in (report_cases.ddp(), report_cases.full()):
        found = money.money(case.summary)
        assert found is not None
        assert sum(s.bar.value for s in found.shares) == pytest.approx(case.summary["cost"]["usd"])
        assert sum(s.frac for s in found.shares) == pytest.approx(1.0)


def test_the_sentence_for_who_pays() -> None:
    summary = report_cases.full().summary
    summary["certainty"]["step_seconds"] |= {"low": 8.93 / 2, "high": 8.93 * 2}
    said = money.sentence(summary)
    assert said.startswith("Training LlamaForCausalLM (8.03 B parameters) on 100 B tokens takes")
    assert "costs $11,400 (nine of ten such runs would cost $5,680 to $22,700)" in said
    assert "$1,140 of it buys no kept step: goodput is 90.0 %." in said
    assert said.endswith("8,260 kWh of electricity, 826 kg CO2e.")
    assert money.dollars(1_720_367) == "$1.72 million"
    assert money.step_usd(summary) == pytest.approx(48.24 * 8.93 / 3600)


def test_a_job_that_does_not_fit_costs_nothing_yet() -> None:
    assert money.money(report_cases.too_big().summary) is None
    summary = report_cases.ddp().summary
    summary["verdict"]["fits"] = False
    assert money.sentence(summary).startswith("If there were memory enough: training")


def test_shares_of_a_link_are_means_over_cells() -> None:
    """Half of its rate over a quarter of the time, then all of it over the last tenth."""
    found = links.shares([(0, 5.0), (25, 0.0), (90, 10.0)], 0, 100, 10.0)
    assert len(found) == links.CELLS
    assert sum(found) / links.CELLS == pytest.approx(0.25 * 0.5 + 0.1)
    assert found[0] == pytest.approx(0.5)
    assert found[links.CELLS // 2] == 0
    assert found[-1] == pytest.approx(1.0)


def test_both_ways_of_a_link_are_one_row_where_they_carry_the_same() -> None:
    case = report_cases.full()
    assert case.records is not None
    counters, ms = case.records.counter_columns(), report_cases.MS
    found = links.heat(case.summary, counters, [], (0, 400 * ms), 0)
    assert found is not None
    (row,) = found["rows"]
    assert row["links"] == ["node-0/nic-0/out", "node-0/nic-0/in"]
    assert row["short"] == "node-0/nic-0 out + in"
    assert len(row["cells"]) == 2 * links.CELLS
    # 45 GB/s of 50 for 24 ms: nine tenths of full; nothing in between.
    assert row["cells"][2 * 10 : 2 * 10 + 2] == f"{-int(-0.9 * 255 // 1):02x}"
    assert row["cells"][2 * 100 : 2 * 100 + 2] == "00"


def test_copy_engines_are_shown_by_the_time_they_are_busy() -> None:
    spans = [
        Span(("node-0", "gpu-0", "h2d"), "weights", "copy", 0, 60, None),
        Span(("node-0", "gpu-0", "compute"), "layer", "forward", 0, 100, None),
    ]
    columns: dict[str, list[object]] = {"name": [], "t_ns": [], "value": []}
    found = links.heat({}, columns, spans, (0, 100), 0)
    assert found is not None
    (row,) = found["rows"]
    assert (row["kind"], row["short"]) == (links.COPIES, "node-0/gpu-0 to GPU")
    assert row["mean"] == pytest.approx(0.6)


def test_links_beyond_the_most_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_LINKS", 1)
    case = report_cases.full()
    assert case.records is not None
    found = links.heat(case.summary, case.records.counter_columns(), [], (0, 10**8), 0)
    assert found is not None
    assert found["left_out"] == 1


def test_a_right_prediction_lies_on_the_diagonal() -> None:
    summary = report_cases.full().summary
    time, memory = parity.parities(summary)
    for found in (time, memory):
        for dot in found.dots:
            right = parity.LEFT + (parity.TOP + parity.SIDE - dot.y)
            assert (dot.x > right) == (dot.row.predicted > dot.row.measured)
        assert found.inside == sum(d.inside for d in found.dots)
    assert len(time.dots) == 506
    # A step of 8.0 to 11.0 s for 8.93 predicted: an MFU of 45.3 % may be 36.8 to 50.6 %.
    assert time.own == "this job: predicted 45.3 %, likely 36.8 % to 50.6 %"


def test_no_interval_no_parity() -> None:
    assert parity.parities(report_cases.ddp().summary) == []
    summary = report_cases.full().summary
    summary["certainty"]["step_seconds"] = None
    assert [p.name for p in parity.parities(summary)] == ["Memory"]


def test_the_peak_in_words() -> None:
    summary = report_cases.full().summary
    said = peaks.explained(summary)
    assert said.startswith("The fullest GPU is node-0/gpu-0 (rank 0): 76.6 GiB, in backward of lm")
    assert "78.3 % of it are optimizer states 39.2 % (held all the time), " in said
    assert said.endswith("3.05 GiB are free.")
    (row,) = peaks.largest(summary)
    assert (row.label, row.name, row.bytes) == ("states", "optimizer states", 30 * GIB)
    assert "too much" in peaks.explained(report_cases.too_big().summary)
    assert peaks.explained({}) == ""
