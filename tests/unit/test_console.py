"""The printed report: what comes first, what is never cut, what fits the width."""

from __future__ import annotations

import pytest

from raysim.report import console
from raysim.report.layout import SPECIAL, ascii_only, bar, number, percent, usd
from raysim.units import GIB
from tests.unit.result_cases import summary

TOO_BIG = {
    "verdict": {"fits": False, "text": "Does not fit: 120 GiB of 80 GiB."},
    "memory": {"peak_bytes": 120 * GIB, "frac": 1.5, "fits": False, "when": "forward of layer 3"},
}


def lines(width: int = 100, **changes: object) -> list[str]:
    return console.text(summary(**changes), width=width).splitlines()


def line(start: str, shown: list[str]) -> str:
    return next(s for s in shown if s.strip().startswith(start))


def test_the_verdict_is_the_first_line() -> None:
    assert lines()[0] == "Fits: 30.0 of 80.0 GiB; 1,000 tokens/s on 16 GPUs."


def test_cluster_line_says_nodes_gpus_and_network() -> None:
    assert "2 nodes \N{MULTIPLICATION SIGN} 8 H100, NVSwitch + 8" in "\n".join(lines())


def test_parts_of_the_step_are_sorted_and_absent_ones_left_out() -> None:
    shown = lines()
    parts = [s.split()[0] for s in shown[shown.index(line("one step", shown)) + 2 :][:3]]
    assert parts == ["kernels", "collectives", "step"]


def test_memory_is_sorted_with_the_peak_last() -> None:
    shown = lines()
    rows = shown[shown.index(line("peak memory", shown)) + 2 :][:3]
    assert [r.split()[0] for r in rows] == ["optimizer", "activations", "peak"]
    assert "30.00   of 80.0 GiB (38 %), node-0/gpu-3, backward of lm_head" in rows[2]


def test_bytes_no_category_accounts_for_are_shown() -> None:
    assert "5.00" in line("not itemised", lines(memory={"peak_bytes": 35 * GIB}))


def test_out_of_memory_says_how_much_what_when_and_what_would_fit() -> None:
    fits = {"change": "x", "text": "zero_stage 3 (44 GiB)", "step_delta_frac": None, "fits": True}
    not_enough = fits | {"text": "zero_stage 2", "fits": False}
    shown = lines(**TOO_BIG, would_help=[fits, not_enough])
    assert shown[0] == "Does not fit: 120 GiB of 80 GiB."
    assert line("Short by", shown) == "Short by    40.0 GiB: 120 GiB needed, 80.0 GiB on each H100"
    assert "forward of layer 3, node-0/gpu-3" in line("During", shown)
    assert "optimizer states 20.0 GiB (17 %)" in line("Largest", shown)
    assert line("Would fit", shown) == "Would fit   zero_stage 3 (44 GiB)"
    assert shown.index(line("Short by", shown)) < shown.index(line("peak memory", shown))


def test_a_job_that_does_not_fit_promises_no_throughput() -> None:
    text = "\n".join(lines(**TOO_BIG))
    assert "tokens/s/GPU" not in text
    assert "one step, if memory sufficed" in text


def test_host_memory_that_does_not_fit_is_said_too() -> None:
    host = {
        "peak_bytes_per_node": 300 * GIB,
        "capacity_bytes": 256 * GIB,
        "fits": False,
        "by_category": [{"category": "o", "name": "optimizer states", "bytes": 290 * GIB}],
    }
    shown = lines(verdict={"fits": False, "text": "No."}, memory={"host": host})
    assert "44.0 GiB: 300 GiB needed, 256 GiB of host memory" in line("Short by", shown)


def test_targets_pass_or_fail_with_the_value() -> None:
    rows = [
        {"text": "days <= 14", "passed": True, "value": 10.0, "value_text": "10"},
        {"text": "usd <= 9k", "passed": False, "value": 11520.0, "value_text": "$11,520"},
        {"text": "epoch_seconds <= 1", "passed": False, "value": None, "value_text": "x"},
    ]
    targets = line("Targets", lines(targets=rows))
    assert "PASS days <= 14" in targets
    assert "FAIL usd <= 9k (is $11,520)" in targets
    assert "FAIL epoch_seconds <= 1 (not reached)" in targets


def test_a_measurement_stands_beside_the_prediction() -> None:
    values = [
        {"name": "epoch_seconds", "measured": 21.9, "predicted": 20.0, "error_frac": -0.087},
        {"name": "step_seconds", "measured": 1.0, "predicted": None, "error_frac": None},
    ]
    shown = lines(reference={"source": "a real run", "values": values})
    assert "epoch seconds 21.9 s, predicted 20.0 s (-8.7 %)" in line("Measured", shown)
    assert "step seconds 1.00 s, not predicted" in "\n".join(shown)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("changes", [{}, TOO_BIG])
def test_no_line_is_wider_than_the_page(width: int, changes: dict) -> None:
    long = {
        "warnings": ["a warning of many words " * 12],
        "simplifications": ["short", "another of many words " * 9],
        "would_help": [
            {"change": "c", "text": f"change number {n}", "step_delta_frac": -0.1, "fits": True}
            for n in range(9)
        ],
    }
    assert max(map(len, lines(width, **(changes | long)))) <= width


def test_markup_in_data_is_data() -> None:
    assert "[bold]x[/bold] [pass]" in "\n".join(lines(warnings=["[bold]x[/bold] [pass]"]))


def test_seconds_of_this_machine_are_only_printed_when_given() -> None:
    assert " in 3.10 s " in console.render(summary(), wall_s=3.1).plain
    assert "20.0 s virtual \N{MIDDLE DOT}" in console.text(summary())


def test_samples_are_named_by_their_unit() -> None:
    text = console.text(
        summary(
            job={"sample_unit": "images"},
            throughput={"tokens_per_s": None, "samples_per_s": 1600.0},
            run={"tokens": None, "epochs": 3, "epoch_seconds": 20.0},
        )
    )
    assert "images/s       1,600" in text
    assert "images/s/GPU               100" in text
    assert "whole run      10.0 days      3 epochs                   95,367 steps" in text


def test_a_job_on_part_of_the_cluster_is_divided_by_its_own_ranks() -> None:
    part = {"sample_unit": "samples", "dp": 1, "pp": 2, "simulated_ranks": 2}
    shown = lines(job=part, throughput={"tokens_per_s": None, "samples_per_s": 1000.0})
    assert "samples/s/GPU              500" in line("samples/s", shown)
    assert "others are equal" not in "\n".join(shown)


def test_changes_that_slow_the_step_are_not_said_to_help() -> None:
    changes = [
        {"change": "a", "text": "micro 4", "step_delta_frac": -0.02, "fits": True},
        {"change": "b", "text": "ZeRO-2", "step_delta_frac": 0.38, "fits": True},
    ]
    shown = lines(would_help=changes)
    assert line("Would help", shown) == "Would help  micro 4: -2.0 % step"
    assert line("Would not", shown) == "Would not   ZeRO-2: +38.0 % step"


def test_the_time_of_the_run_is_taken_apart() -> None:
    phases = [{"name": "imports", "seconds": 4.0}, {"name": "training steps", "seconds": 90.0}]
    shown = lines(run={"phases": phases})
    assert (
        line("Run time", shown) == "Run time    training steps 90.0 s \N{MIDDLE DOT} imports 4.00 s"
    )


def test_every_special_character_has_a_plain_one() -> None:
    report = console.render(summary())
    assert set(SPECIAL) <= set(report.plain) | set("\N{PLUS-MINUS SIGN}\N{LEFT ONE EIGHTH BLOCK}")
    assert ascii_only(report).plain.isascii()
    assert len(ascii_only(report).plain) == len(report.plain)


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, ""), (1e-9, "\N{LEFT ONE EIGHTH BLOCK}"), (0.5, "\N{FULL BLOCK}" * 4),
     (1.0, "\N{FULL BLOCK}" * 8), (2.0, "\N{FULL BLOCK}" * 8),
     (0.5625, "\N{FULL BLOCK}" * 4 + "\N{LEFT HALF BLOCK}")],
)  # fmt: skip
def test_bars_are_drawn_in_eighths(share: float, drawn: str) -> None:
    assert bar(share, 8) == drawn


def test_numbers_as_people_read_them() -> None:
    assert [percent(x) for x in (0.974, 0.0001, 0.0, 1.0)] == [
        "97.4 %",
        "<0.1 %",
        "0.0 %",
        "100.0 %",
    ]
    assert [usd(x) for x in (11600, 2.99, 0.116)] == ["$11,600", "$2.99", "$0.116"]
    assert [number(x) for x in (117400.4, 14.31, 0.5)] == ["117,400", "14.3", "0.5"]
