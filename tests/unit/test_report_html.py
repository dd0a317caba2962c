"""The page: one file, every section, whatever the summary holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.report import html, words
from tests.unit import report_cases
from tests.unit.report_cases import Case, Recorded

CASES: list[Callable[[], Case]] = [
    report_cases.ddp,
    report_cases.full,
    report_cases.pipeline,
    report_cases.too_big,
]
ALWAYS = ["verdict", "cluster", "step", "timeline", "memory", "collectives", "links", "bound",
          "cost", "targets", "trust", "warnings", "scenario"]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr", "circle", "path", "rect", "polygon"}


class Page(HTMLParser):
    """Elements, ids, references and texts; complains about tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attrs)
        if known.get("id"):
            self.ids.append(str(known["id"]))
        if tag == "section":
            self.section = str(known["id"])
        self.references += [str(known[k]) for k in ("src", "href") if known.get(k)]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"stray </{tag}>"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.section, []).append(data)

    def text(self, section: str) -> str:
        return " ".join(" ".join(self.texts[section]).split())


@pytest.mark.parametrize("case", CASES)
def test_one_offline_file_with_every_section(case: Callable[[], Case]) -> None:
    text = html.render(case())
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert [i for i in page.ids if i in ALWAYS] == ALWAYS
    assert all(r.startswith(("#", "data:")) for r in page.references)
    assert {r[1:] for r in page.references if r.startswith("#")} <= set(page.ids)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket", text)
    assert len(text.encode()) < 1_000_000
    assert text.isascii()


@pytest.mark.parametrize("case", CASES)
def test_same_result_same_bytes(case: Callable[[], Case]) -> None:
    assert html.render(case()) == html.render(case())


def test_verdict_first_with_its_numbers() -> None:
    page = Page(html.render(report_cases.ddp()))
    verdict = page.text("verdict")
    assert verdict.startswith("Fits 76.6 of 79.6 GiB on the fullest GPU (96 %)")
    for said in ("PASS days <= 14", "FAIL gpu_mem_peak", "117,400", "8.93 s", "45.3 %", "$11,367"):
        assert said in verdict


def test_a_job_that_does_not_fit_says_by_how_much() -> None:
    page = Page(html.render(report_cases.too_big()))
    assert page.text("verdict").startswith("Does not fit 121.4 of 79.6 GiB")
    assert "too much per GPU 41.8 GiB" in page.text("verdict")
    assert "does not fit in memory" in page.text("step")
    assert "41.8 GiB too much" in page.text("memory")


def test_units_stand_with_their_numbers() -> None:
    page = Page(html.render(report_cases.ddp()))
    assert "all_reduce ring, simple backward gradients 32 435 MiB 13.6 GiB 520 ms" in page.text(
        "collectives"
    )
    assert "341 GB/s" in page.text("collectives")
    assert "model FLOPs at the GPU's peak 4.05 s 45.3 % 4.05 s" in page.text("step")
    assert "kernels below the peak 4.15 s 46.5 % 8.20 s" in page.text("step")
    assert "No time in: pipeline bubble, copies and CPU optimizer" in page.text("step")
    assert "3.35 TB/s datasheet NVIDIA H100 datasheet" in page.text("trust")
    assert "4.50 us measured" in page.text("trust")
    assert "step seconds 8.93 s 9.21 s -3.0 %" in page.text("reference")


@pytest.mark.parametrize(("name", "value", "said"), [
    ("A100-SXM-80GB flops_per_s.fp32", 19.5e12, "20 TFLOP/s"),
    ("a2-ultragpu-4g usd_per_hour", 20.28, "$20.28/h"),
    ("T4 memory_bytes", 2**34, "16.0 GiB"),
    ("launch_s", 4.5e-6, "4.50 us"),
    ("step_ns", 1500, "1.50 us"),
    ("memory_share", 0.8, "80.0 %"),
    ("gemm.fp32", None, "-"),
    ("sm_count", 108, "108"),
])  # fmt: skip
def test_inputs_are_printed_by_the_unit_in_their_name(name: str, value: Any, said: str) -> None:
    assert words.quantity(name, value) == said


def test_formulas_are_there_to_point_at() -> None:
    text = html.render(report_cases.ddp())
    assert "128 samples per step (1.05 M tokens) / 8.93 s" in text
    assert "bytes x 2(n-1)/n / seconds, n = 16" in text


def test_reference_only_where_there_is_one() -> None:
    assert "reference" not in Page(html.render(report_cases.pipeline())).ids


def test_pipeline_shows_every_stage() -> None:
    text = html.render(report_cases.pipeline())
    data = payload(text)
    assert [g["label"] for g in data["timeline"]["groups"]] == [
        f"stage {s}, rank {4 * s}" for s in range(4)
    ]
    assert len(data["memory"]["curves"]) == 4
    assert "stage 3 rank 12 21.1 GiB" in Page(text).text("memory")


def test_the_step_with_the_memory_peak_is_in_view() -> None:
    line = payload(html.render(report_cases.ddp()))["timeline"]
    assert [s[0] for s in line["steps"]] == [1, 2, 3]
    assert line["view"] == line["steps"][0][1:]


def test_a_recorded_step_of_another_length_is_owned_up_to() -> None:
    case = report_cases.pipeline()
    assert "recorded step lasts" not in Page(html.render(case)).text("timeline")
    case.summary["step"]["seconds"] = 3.0
    assert "The recorded step lasts 1.11 s" in Page(html.render(case)).text("timeline")


def test_slices_left_out_are_counted_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    case = report_cases.ddp()
    total = len(case.records.spans())
    monkeypatch.setattr(html.charts.timeline, "__defaults__", (None, 100))
    text = Page(html.render(case)).text("timeline")
    assert f"100 of {total} recorded slices are drawn, of this step the longest 100 of" in text


def payload(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


def hostile(value: Any) -> Any:
    """Every text of a summary replaced."""
    if isinstance(value, dict):
        return {k: hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("case", CASES)
def test_names_cannot_become_markup(case: Callable[[], Case]) -> None:
    bad = case()
    plain = Page(html.render(bad))
    bad.summary = hostile(bad.summary)
    bad.scenario_yaml = HOSTILE
    to, gpu = Recorded(), ("node-0", "gpu-0")
    to.slice((*gpu, HOSTILE), HOSTILE, HOSTILE, 0, 5, step=1, op=HOSTILE)
    to.memory(gpu, HOSTILE, 0, 5.0)
    bad.records = to
    text = html.render(bad)
    page = Page(text)
    assert page.tags.count("script") == plain.tags.count("script")
    assert "img" not in page.tags
    assert payload(text)["timeline"]["names"] == [HOSTILE]


@pytest.mark.parametrize("key", [*report_cases.full().summary, None])
@pytest.mark.parametrize("absent", ["missing", "null", "empty"])
def test_any_part_of_a_summary_may_be_absent(key: str | None, absent: str) -> None:
    case = report_cases.full()
    for name in [key] if key else list(case.summary):
        if absent == "missing":
            del case.summary[name]
        else:
            old = case.summary[name]
            case.summary[name] = None if absent == "null" else type(old)()
    if key is None:
        case.records = None
    assert set(ALWAYS) <= set(Page(html.render(case)).ids)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a summary."""
    found = [path] if path else []
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    return found + [p for k, v in inside for p in leaves(v, (*path, k))]


WHOLE = {"goodput", "certainty"}
"""Parts that are written whole or not at all."""
PATHS = [p for p in leaves(report_cases.full().summary) if p[0] not in WHOLE or len(p) == 1]
ODD = st.sampled_from(
    [None, "", "text", -1, 0, 1e300, float("nan"), float("inf"), True, [], {}, [None]]
)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(PATHS), ODD), min_size=2, max_size=6))
def test_any_value_of_a_summary_may_be_odd(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    case = report_cases.full()
    case.records = report_cases.ddp_records(steps=1, layers=2)
    for path, value in changes:
        here: Any = case.summary
        for key in path[:-1]:
            inside = (isinstance(here, dict) and key in here) or (
                isinstance(here, list) and isinstance(key, int) and key < len(here))  # fmt: skip
            here = here[key] if inside else {}
        if isinstance(here, dict):
            here[path[-1]] = value
    assert set(ALWAYS) <= set(Page(html.render(case)).ids)
