"""The page of a plan: what is on it, from plain data."""

from __future__ import annotations

import json
import re

import pytest

from raysim.report import plan_console
from raysim.report.plan_data import MOST, columns, kept, status_of
from raysim.report.plan_html import PlanPage, render
from raysim.report.plan_words import metrics_of
from raysim.scenario.overrides import labels

SPACE = {"cluster.gpu-worker.replicas": [1, 2], "train.micro_batch": [1, 2]}
OFFLOAD = "train.deepspeed.zero_optimization.offload_optimizer.device"


def trial(number, **said):
    choice = {key: values[number // 2 % 2] for key, values in SPACE.items()}
    metrics = {"usd": 10.0 + number, "seconds": 86400.0 * 3, "days": 3.0, "tokens_per_s": 1e5}
    plain = {
        "number": number, "choice": choice, "status": "ok", "why": "", "strategy": "ZeRO-3",
        "gpus": 16, "nodes": 3, "bound_by": "GPU kernels", "run_id": "", "metrics": metrics,
        "missed": (), "likely": 0.8,
    }  # fmt: skip
    return plain | said


def summary(trials, **said):
    meets = [t for t in trials if t["status"] == "ok" and not t["missed"]]
    plain = {
        "scenario": "job", "space": SPACE, "targets": ["days <= 4"], "tried": len(trials),
        "objective": {"metric": "usd", "direction": "minimize"}, "size": len(trials),
        "complete": True, "meets": len(meets), "best": meets[0] if meets else None,
        "instead": None, "nearest": None, "top": meets, "pareto": [], "reasons": [],
        "rests_on": [], "importance": None, "best_of_each_kind": [], "units": {},
    }  # fmt: skip
    return plain | said


def page(trials, files=None, chosen=None, **said):
    return render(
        PlanPage(
            summary=summary(trials, **said), trials=trials, files=files or {}, chosen=chosen,
            command="raysim plan job", scenario="job", scenario_yaml="name: job\n",
            version="0", folder="plan-job",
        )
    )  # fmt: skip


def test_what_to_try_next_is_said_in_both():
    trials = [trial(0), trial(2)]
    beyond = {"cluster.gpu-worker.replicas": [1, 2, 4]}
    next_ = "--vary cluster.gpu-worker.replicas=1,2,4"
    assert next_ in " ".join(plan_console.render(summary(trials, beyond=beyond)).plain.split())
    assert next_ in page(trials, beyond=beyond)


def test_a_first_choice_that_cannot_be_counted_on_is_said():
    objective = {"metric": "usd", "direction": "minimize", "likely": 0.8}
    said = "with 40% only; none tried reaches 80%"
    for chance, there in ((0.4, True), (0.9, False)):
        trials = [trial(0, likely=chance), trial(1, likely=0.3)]
        printed = " ".join(plan_console.render(summary(trials, objective=objective)).plain.split())
        assert (said in printed) is there
        assert (said in page(trials, objective=objective)) is there
        assert "(80%) before others" in printed


def test_the_verdict_is_first_with_its_interval_and_probability():
    certainty = {"step_seconds": {"low": 0.8, "high": 2.0}}
    trials = [trial(0, metrics=trial(0)["metrics"] | {"step_seconds": 1.0}), trial(1)]
    text = page(trials, chosen={"certainty": certainty})
    verdict = text.split("</section>")[0]
    assert "$10.00, 3.00 days, on 16 GPUs" in verdict
    assert "2.40\xa0days to 6.00\xa0days" in verdict
    assert "80.0 %" in verdict
    assert "<b>PASS</b> days &lt;= 4" in verdict


def test_kinds_that_the_five_best_do_not_show_have_a_table_of_their_own():
    node = "cluster.hardware.gpu-worker.node"
    trials = [trial(n, choice={node: "big" if n == 6 else f"small-{n}"}) for n in range(7)]
    said = {"space": {node: []}, "best_of_each_kind": [trials[0], trials[6]]}
    printed = plan_console.render(summary(trials, **said)).plain
    kinds = printed.partition("best of each kind of node\n")[2].partition("\n\n")[0]
    assert ["big" in kinds, "small-0" in kinds, "small-1" in kinds] == [True, True, False]
    assert "each kind" not in plan_console.render(summary(trials, **said), top=7).plain


def test_dollars_per_million_tokens_have_one_dollar_sign():
    name = "usd_per_million_output_tokens"
    objective = {"metric": name, "direction": "minimize"}
    text = page([trial(0, metrics={name: 2.66, "usd": 12.88}, gpus=1)], objective=objective)
    assert "$2.66 per million output tokens, $12.88, on 1 GPU<" in text


def test_what_targets_limit_has_a_column_in_its_unit():
    trials = [trial(n, metrics={"usd": 1.0 + n, "ttft_p99": 0.5}) for n in range(2)]
    said = {"targets": ["ttft_p99 <= 2s"], "units": {"ttft_p99": "seconds"}}
    printed = plan_console.render(summary(trials, **said)).plain
    assert "ttft_p99  likely\n" in printed
    assert " 500 ms " in printed


def test_nothing_meets_the_targets_is_an_answer_with_reasons_and_the_nearest():
    miss = trial(0, missed=("days <= 1",))
    near = {"trial": miss, "off": [{"target": "days <= 1", "value": 3.0, "times": 3.0}]}
    reasons = [
        {"trials": 1, "what": "miss days <= 1", "example": "closest: 3, nodes 1"},
        {"trials": 7, "what": "are refused", "example": "it does not divide; nodes 2"},
    ]
    text = page([miss], nearest=near, reasons=reasons, targets=["days <= 1"])
    verdict = text.split("</section>")[0]
    assert "Nothing meets the targets" in verdict
    assert "7 are refused (it does not divide)" in verdict
    assert "days 3 instead of &lt;= 1" in verdict
    assert "PASS" not in verdict


def test_an_interrupted_search_says_so():
    assert "Interrupted</b> after 1 of 9" in page([trial(0)], complete=False, size=9)


def test_files_and_reasons_cannot_close_their_elements():
    text = page([trial(0, why="</script>")], files={"launch.sh": "</pre><b>x"})
    assert "</pre><b>x" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data.group(1))["words"][0] == "</script>"


def test_what_does_not_run_has_no_speed_on_the_page_but_its_memory():
    full = trial(1, status="out_of_memory", metrics={"usd": 1.0, "gpu_mem_peak": 1.2})
    data = columns(summary([trial(0), full]), kept([trial(0), full]))
    by_name = dict(zip([m["name"] for m in data["metrics"]], data["values"], strict=True))
    assert by_name["usd"] == [10, None]
    assert by_name["gpu_mem_peak"] == [None, 1.2]


def test_of_many_trials_all_that_were_played_are_kept():
    trials = [trial(n, status="ok" if n % 50 == 0 else "estimated") for n in range(2 * MOST)]
    on_page = kept(trials)
    assert on_page.total == 2 * MOST
    assert len(on_page.trials) == MOST
    assert sum(t["status"] == "ok" for t in on_page.trials) == 2 * MOST // 50
    numbers = [t["number"] for t in on_page.trials]
    assert numbers == sorted(numbers)


def test_a_page_of_very_many_trials_stays_small_and_says_what_is_left_out():
    trials = [trial(n, status="ok" if n < 100 else "estimated") for n in range(100_000)]
    text = page(trials)
    assert len(text.encode()) < 8e6
    assert "20,000 of 100,000 trials" in text


def test_a_choice_beyond_the_space_is_on_the_page():
    beyond = trial(9, choice={"cluster.gpu-worker.replicas": 4, "train.micro_batch": 1})
    missed = trial(0, missed=("days <= 4",))
    data = columns(summary([missed], best=None, instead=beyond), kept([missed]))
    assert data["choice"] == 1
    assert data["keys"][0]["values"] == ["1", "2", "4"]
    assert data["keys"][0]["at"] == [0, 2]


def test_status_tells_misses_from_those_that_meet_all():
    assert status_of(trial(0)) == "meets"
    assert status_of(trial(0, missed=("x",))) == "misses"
    assert status_of(trial(0, status="refused")) == "refused"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([OFFLOAD], ["offload_optimizer"]),
        (["cluster.nodes", "llm.replicas"], ["nodes", "replicas"]),
        (["cluster.a.replicas", "train.zero_stage"], ["nodes", "zero_stage"]),
        (["cluster.a.replicas", "cluster.b.replicas"], ["a.replicas", "b.replicas"]),
    ],
)
def test_keys_are_told_apart_by_their_labels(keys, said):
    assert list(labels(keys).values()) == said


def test_a_metric_of_a_library_has_its_unit_and_its_better_end():
    asked = {"objective": {"metric": "ttft_seconds", "direction": "minimize"}}
    (ttft, rate) = metrics_of(["ttft_seconds", "requests_per_s"], asked)
    assert (ttft.unit, ttft.more) == ("seconds", False)
    assert rate.more
    assert [m.name for m in metrics_of(["days", "seconds", "total_seconds"], asked)] == ["seconds"]
