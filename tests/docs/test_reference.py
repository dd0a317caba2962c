"""Reference pages are complete: options, metrics, keys, columns, files, scenarios, accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.raystate.listings import BASE, DETAIL
from raysim.results.frames import SCHEMA
from raysim.results.result import written
from raysim.results.targets import METRICS
from tests.benchmarks import readme
from tests.docs.pages import DOCS, ROOT, code, rows
from tests.test_public import OPTIONS

COMMANDS = DOCS / "commands.md"
GLOSSARY = DOCS / "glossary.md"
FILES = DOCS / "files.md"
OPEN_KEYS = {
    "by_category", "by_class", "by_kind", "by_state", "causes", "metrics", "node_watts",
    "p50_phase_seconds", "resources", "tokens_per_s", "samples_per_s", "memory_peak_bytes",
}  # fmt: skip
"""Mappings whose keys are names of the run's own."""
OPEN_VALUES = {"tables", "warnings", "detail", "would_help"}
"""Of a library: lists and mappings in its own words."""


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_option_is_documented(verb: str) -> None:
    """In the table below the verb's heading, by every name it has."""
    text = COMMANDS.read_text(encoding="utf-8")
    heading = next(h for h in re.findall(r"(?m)^## (.+)$", text) if verb in re.split(r"[^\w-]+", h))
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    said = {word for part in code(section) for word in re.split(r"[ ,]+", part)}
    flags = {
        name for option in OPTIONS[verb] if option.startswith("-") for name in option.split("/")
    }
    assert sorted(flags - said) == []
    documented = {w for row in re.findall(r"(?m)^\| (`--?[^|]+)\|", section) for w in code(row)}
    names = {word.split()[0] for word in documented}
    assert sorted(names - flags) == [], "documented, but there is no such option"


def documented_keys() -> set[str]:
    """Dotted keys of the glossary.

    ``.name`` stands beside the key before it, or beside the last one that was written out.
    """
    keys: set[str] = set()
    for cells in rows(GLOSSARY):
        whole = before = ""
        for name in code(cells[0]):
            if not name.startswith("."):
                whole = before = name
                keys.add(name)
                continue
            beside = {key.rpartition(".")[0] + name for key in (whole, before)}
            before = before.rpartition(".")[0] + name
            keys |= beside
    return keys


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a summary, open mappings as ``*``."""
    last = path.rpartition(".")[2]
    if last in OPEN_VALUES and path.startswith("libraries"):
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            name = "*" if last in OPEN_KEYS and (path, last) != ("certainty", "") else key
            yield from leaves(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    ["bert_mrpc_zero3", "llama31_8b_sft", "llama3_70b_goodput", "ray_node_failure",
     "ray_shared_cluster", "ray_shuffle_spills", "asha_sweep"],
)  # fmt: skip
def test_every_key_of_a_summary_is_in_the_glossary(scenario: str) -> None:
    result = raysim.run(raysim.load(ROOT / "scenarios" / scenario))
    missing = sorted(set(leaves(result.summary)) - documented_keys())
    assert missing == []


def library_metrics() -> set[str]:
    from raysim.raylibs.data.report import METRICS as DATA
    from raysim.raylibs.exoshuffle.report import METRICS as EXOSHUFFLE
    from raysim.raylibs.train.job import TrainRun
    from raysim.workloads.llm_job import LlmJob
    from raysim.workloads.rl_job import RlJob
    from raysim.workloads.serve_job import ServeJob
    from raysim.workloads.tune_job import TuneJob

    own: set[str] = {*DATA, *EXOSHUFFLE, *TrainRun.metrics}
    for job in (LlmJob, RlJob, ServeJob, TuneJob):
        own |= set(job.metrics.fget(None))  # type: ignore[attr-defined]  # reads nothing of the job
    return own


def test_every_metric_is_in_the_glossary() -> None:
    said = {name for cells in rows(GLOSSARY) for cell in cells[:2] for name in code(cell)}
    assert sorted(set(METRICS) - said) == []
    assert sorted(library_metrics() - said) == []


def test_metrics_stand_where_the_glossary_says() -> None:
    said = {
        name: code(cells[4])[0]
        for cells in rows(GLOSSARY)
        if len(cells) == 5
        for name in code(cells[0])
    }
    assert {name: metric.path for name, metric in METRICS.items()} == said


def test_every_column_is_in_the_file_reference() -> None:
    text = FILES.read_text(encoding="utf-8")
    for table, columns in SCHEMA.items():
        section = text.split(f"### {table}.parquet\n")[1].split("\n##")[0]
        shown = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \| (.+) \|$", section)
        assert [(c, k, t) for c, (k, t) in columns.items()] == shown
    tables = {cells[0].strip("`"): code(cells[2]) for cells in rows(FILES) if len(cells) == 3}
    for name in BASE:
        assert tables[f"{name}.parquet"] == [*BASE[name], *DETAIL[name]]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["bert_mrpc_zero3", "ray_map_reduce"])
def test_every_file_of_a_run_is_in_the_file_reference(scenario: str, tmp_path: Path) -> None:
    folder = raysim.run(raysim.load(ROOT / "scenarios" / scenario)).write(tmp_path / "run")
    said = set(code(FILES.read_text(encoding="utf-8")))
    assert {p.name + "/" * p.is_dir() for p in folder.iterdir()} == set(written(folder)) <= said
    inside = {p.name for p in (folder / "frames").iterdir()}
    known = said | {f"{name}.parquet" for name in SCHEMA}
    assert sorted(inside - known) == []


def test_every_scenario_is_listed() -> None:
    text = (ROOT / "scenarios/README.md").read_text(encoding="utf-8")
    folders = sorted(p.parent.name for p in (ROOT / "scenarios").glob("*/scenario.yaml"))
    assert [name for name in folders if f"[{name}]({name}/README.md)" not in text] == []


def report_errors() -> dict[str, list[str]]:
    """Rows, median, 90th percentile and worst by family, as REPORT.md has them."""
    text = (ROOT / "validation/REPORT.md").read_text(encoding="utf-8")
    table = text.split("## Errors by family")[1].split("\n## ")[0]
    found = {}
    for line in re.findall(r"(?m)^\| ([\w/ ]+) \| (.+) \|$", table):
        cells = line[1].split(" | ")
        found[line[0].strip()] = [cells[0], cells[1], cells[2], cells[4]]
    return found


def test_figures_of_accuracy_are_the_reports() -> None:
    report = report_errors()
    shown = {code(cells[0])[0]: cells[2:] for cells in rows(DOCS / "accuracy.md")}
    assert len(shown) > 30
    assert {family: report.get(family) for family in shown} == shown


def test_baselines_of_accuracy_are_the_reports() -> None:
    report = (ROOT / "validation/REPORT.md").read_text(encoding="utf-8")
    line = re.search(r"(?m)^\| all runs \| (\d+) \| (.+)$", report)
    assert line
    ours, _, mfu, _, flops, _ = (part.split(", ") for part in line[2].rstrip(" |").split(" | "))
    page = " ".join((DOCS / "accuracy.md").read_text(encoding="utf-8").split())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"All {line[1]} timed training runs above together: {ours[0]} in the median" in page
    assert f"{ours[1]} at the 90th percentile" in page
    for share in (*mfu[:2], *flops[:2]):
        assert share in page
    assert f"On {line[1]} timed training runs" in readme
    assert f"step times are {ours[0]} off in the median" in readme
    assert f"{float(ours[1].split()[0]):.0f} % at the 90th percentile" in readme


def test_the_report_is_made_of_the_rows_compared() -> None:
    """Of families without rounding trouble: rows and the median, from compared/*.csv."""
    from statistics import median

    from raysim.validate.points import read_points

    for case, family in (("mpt", "mpt/A100"), ("mpt", "mpt/H100"), ("sc21", "sc21/one_stage")):
        points = read_points(ROOT / f"validation/compared/{case}.csv")
        own = [p for p in points if p.role == "validation" and p.family == family]
        errors = [abs(p.predicted / p.measured - 1) for p in own]
        assert report_errors()[family][:2] == [str(len(own)), f"{median(errors) * 100:.1f} %"]


def test_the_readme_shows_the_speed_that_was_measured() -> None:
    """Its table is rows of RESULTS.md, which `make bench` writes with it."""
    results = readme.RESULTS.read_text(encoding="utf-8")
    text = readme.README.read_text(encoding="utf-8")
    assert readme.shown(text) == readme.short_table(results)
    assert readme.with_table(text, results) == text
    assert len(text.splitlines()) + len(readme.SHOWN) - readme.shown(text).count("\n") + 2 <= 130
