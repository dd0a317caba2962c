"""What a job is like, the interval past errors give it, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.kernel.simulation import Simulation
from raysim.perf import uncertainty
from raysim.perf.uncertainty import Interval, Range
from raysim.report import console, html, sections, words
from raysim.results import certainty
from raysim.results.certainty import features
from raysim.training.breakdown import Breakdown
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from tests.training_parts import cluster, llama, plan
from tests.unit import report_cases, result_cases

SLOW = Interval(kind=("time", "measured", "many", "any"), rows=139, families=6, low=1.1, high=1.5)
FULL = Interval(kind=("memory", "any", "any", "any"), rows=67, families=3, low=1.0, high=1.25)


def step(**options: Any) -> StepOutcome:
    p = plan(llama(), **{"mesh": Mesh(dp=16), "stage": 3} | options)
    return simulate(p, cluster(2), simulation=Simulation())


def test_features_are_of_the_job_as_asked() -> None:
    found = features(step(gradient_accumulation_steps=64))
    assert (found.gpu, found.tables) == ("H100-SXM-80GB", "measured")
    assert (found.nodes, found.gpus, found.engine) == (2, 16, "zero-3")
    assert found.network == "infiniband"
    assert found.parameters == llama().num_parameters
    inside = features(step(mesh=Mesh(dp=8), stage=1))
    assert (inside.nodes, inside.engine, inside.network) == (1, "zero-1", "none")
    away = step(zero={"offload_optimizer": OffloadOptimizer(device="cpu")})
    assert features(away).engine == "zero-3-offload"


def test_a_gpu_counts_as_measured_only_where_products_and_attention_are() -> None:
    job = plan(llama(), precision="fp16")
    played = simulate(job, cluster(1, "dgx-v100-32-8"), simulation=Simulation())
    assert played.costs.provenance["gemm.fp16"].basis == "measured"
    assert features(played).tables == "borrowed"


@pytest.mark.parametrize(
    ("parts", "bound"),
    [
        ({"compute": 70, "exposed_collectives": 15, "launch": 15}, "kernels"),
        ({"compute": 70, "exposed_collectives": 15, "pipeline_transfers": 15}, "network"),
        ({"compute": 50, "exposed_collectives": 24, "launch": 26}, "host"),
        ({"compute": 10, "bubble": 90}, "kernels"),
    ],
)
def test_what_a_step_waits_for_longer_than_a_fifth_binds_it(
    parts: dict[str, int], bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = step()
    every = dict.fromkeys(played.breakdown.parts_ns, 0) | parts
    said = Breakdown(step_ns=100, parts_ns=every, collective_ns=0)
    monkeypatch.setitem(vars(played), "breakdown", said)
    assert features(played).bound == bound


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    own = features(step())
    ranges = (
        Range(gpu=own.gpu, rows=9, most_gpus=8, parameters=(1e6, 1e9), seq_len=(8, 4096),
              engines=("zero-3",), networks=("infiniband",)),
    )  # fmt: skip
    monkeypatch.setattr(uncertainty, "_intervals", lambda: {i.kind: i for i in (SLOW, FULL)})
    monkeypatch.setattr(uncertainty, "_ranges", lambda: ranges)


def said_of(played: StepOutcome) -> dict[str, Any]:
    return certainty.certainty(
        played,
        {"step": {"seconds": 10.0}, "memory": {"peak_bytes": 2**30},
         "throughput": {"tokens_per_s": 3300.0, "samples_per_s": 33.0}},
    )  # fmt: skip


@pytest.mark.usefixtures("known")
def test_an_interval_is_around_each_number() -> None:
    """A rate is low where the step is long; memory has past errors of its own."""
    found = said_of(step())
    assert found["covers"] == 0.9
    assert (found["step_seconds"]["low"], found["step_seconds"]["high"]) == (11.0, 15.0)
    assert found["tokens_per_s"]["low"] == pytest.approx(2200)
    assert found["samples_per_s"]["high"] == pytest.approx(30)
    assert found["memory_peak_bytes"]["high"] == 1.25 * 2**30
    assert found["step_seconds"]["kind"] == "GPUs with measured kernels, many nodes"
    assert found["memory_peak_bytes"]["rows"] == 67
    assert found["standing"] == "extrapolated"
    assert found["reasons"] == ["16 GPUs, measured up to 8"]


@pytest.mark.usefixtures("known")
def test_constants_of_a_profile_have_no_past_errors() -> None:
    found = certainty.without(said_of(step()), "why")
    assert found["step_seconds"] is found["memory_peak_bytes"] is None
    assert (found["standing"], found["reasons"]) == ("guessed", ["why"])
    assert words.likely_words(found) == []


@pytest.mark.usefixtures("known")
def test_terminal_and_page_tell_the_same() -> None:
    found = said_of(step())
    shown = console.text(result_cases.summary() | {"certainty": found})
    flat = " ".join(shown.split())
    assert "90 % in step 11.0 s to 15.0 s" in flat
    assert "tokens/s 2,200 to 3,000" in flat
    assert "peak 1.00 GiB to 1.25 GiB" in flat
    assert "time of 139 runs: GPUs with measured kernels, many nodes" in flat
    assert "Standing extrapolated: 16 GPUs, measured up to 8" in flat
    page = sections.certainty({"certainty": found})
    assert page["likely"] == words.likely_words(found)
    assert page["words"] in flat
    assert sections.certainty({}) == {}
    inside = found | {"standing": "interpolated", "reasons": []}
    assert "were compared" in words.standing_words(inside)


@pytest.mark.usefixtures("known")
def test_the_page_shows_intervals_beside_the_numbers() -> None:
    case = report_cases.ddp()
    assert "90 % in" not in html.render(case)
    case.summary["certainty"] = said_of(step())
    page = html.render(case)
    assert page.count("90 % in 11.0 s to 15.0 s") == 1
    assert page.count("90 % in 1.00 GiB to 1.25 GiB") == 1
    assert "extrapolated: 16 GPUs, measured up to 8" in page


def test_a_job_of_another_gpu_is_guessed() -> None:
    """Of the committed tables: no training run on an L4 was measured."""
    own = replace(features(step()), gpu="L4", tables="borrowed")
    assert uncertainty.standing(own).standing == "guessed"
