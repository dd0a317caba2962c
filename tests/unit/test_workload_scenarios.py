"""Workloads as keys of a scenario: what they become, what is said of wrong ones, what runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.scenario.load import load
from raysim.scenario.program import ProgramScenario
from raysim.workloads.ray.arrivals import Arrivals, Poisson, Times
from raysim.workloads.ray.durations import Exponential, LogNormal, Uniform
from raysim.workloads.ray.shapes import TaskShape
from raysim.workloads.ray.shuffle import Shuffle
from raysim.workloads.ray.task_bag import TaskBag

HEAD = "raysim: 1\nname: w\ncluster: {nodes: 2, node: m5.2xlarge}\njobs:\n  - workload:\n      "


def scenario(folder: Path, text: str, **changes: Any) -> ProgramScenario:
    path = folder / "scenario.yaml"
    path.write_text(HEAD + text + "\n", encoding="utf-8")
    made = load(path, changes or None)
    assert isinstance(made, ProgramScenario)
    return made


def summary(folder: Path, text: str) -> dict[str, Any]:
    return raysim.run(scenario(folder, text)).summary


def graph(folder: Path, **attributes: Any) -> None:
    made: nx.DiGraph[str] = nx.DiGraph()
    for name in ("a", "b"):
        made.add_node(name, duration_s=1.0, output_bytes=1000)
    made.add_node("c", **{"duration_s": 0.5, **attributes})
    made.add_edges_from([("a", "c"), ("b", "c")])
    data = nx.node_link_data(made, edges="links")
    (folder / "graph.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def test_keys_with_units_become_the_spec(tmp_path: Path) -> None:
    text = "task_bag: {tasks: 1k, duration: {exponential: 50ms}, memory: 2GiB, return_bytes: 1MiB}"
    shape = TaskShape(runs=Exponential(mean_s=0.05), memory_bytes=2 * 2**30)
    assert scenario(tmp_path, text).job.workload == TaskBag(
        tasks=1000, shape=shape, return_bytes=2**20
    )


def test_stages_of_a_shuffle_have_shapes_of_their_own(tmp_path: Path) -> None:
    text = """shuffle:
        {mappers: 8, reducers: 4, total_bytes: 1GB, map: {duration: {lognormal: {median: 1s,
         sigma: 0.5}}}, reduce: {name: merge, duration: {uniform: {low: 1s, high: 2s}}}}"""
    assert scenario(tmp_path, text).job.workload == Shuffle(
        mappers=8, reducers=4, total_bytes=10**9,
        map_shape=TaskShape(name="map", runs=LogNormal(median_s=1.0, sigma=0.5)),
        reduce_shape=TaskShape(name="merge", runs=Uniform(low_s=1.0, high_s=2.0)),
    )  # fmt: skip


def test_arrivals_are_a_rate_or_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("0,first\n1.5\n\n4\n", encoding="utf-8")
    rate = scenario(tmp_path, "arrivals: {rate: 90/min, lasting: 10s}").job.workload
    assert isinstance(rate, Arrivals)
    assert rate.times == Poisson(rate_per_s=1.5, duration_s=10.0)
    for times in ("trace.csv", "[0s, 1500ms, 4s]"):
        trace = scenario(tmp_path, f"arrivals: {{times: {times}}}").job.workload
        assert isinstance(trace, Arrivals)
        assert trace.times == Times(seconds=(0.0, 1.5, 4.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("task_bag: {task: 3}", "6:18   unknown key 'task' in jobs.0.workload.task_bag; did you"),
        ("bag: {tasks: 3}", "6:7   unknown key 'bag' in jobs.0.workload; known: task_bag, "),
        ("task_bag: {tasks: 3, duration: 50}", "needs a unit, for example '30min'"),
        ("task_bag: {tasks: 3, duration: {uniform: {low: 2s, high: 1s}}}",
         "6:38   jobs.0.workload.task_bag.duration: uniform.high_s: must be at least 2 (got 1)"),
        ("task_bag: {tasks: 3, submitters: 5}",
         "6:40   jobs.0.workload.task_bag.submitters: more than there are tasks (3)"),
        ("task_bag: {tasks: 3, resources: {GPU: 1}}",
         "6:45   jobs.0.workload.task_bag.resources.GPU: has a setting of its own"),
        ("shuffle: {mappers: 8, reducers: 8, total_bytes: 10B, map: {num_gpus: 1.5}}",
         "jobs.0.workload.shuffle.map.num_gpus: above 1 must be whole (got 1.5)"),
        ("arrivals: {rate: 20/s}", "give rate and lasting (Poisson), or times (a trace)"),
        ("arrivals: {rate: 20, lasting: 1s}", "expected a rate such as '20/s'"),
        ("arrivals: {times: [2s, 1s]}",
         "6:25   jobs.0.workload.arrivals.times.seconds[1]: must be at least 2 (got 1)"),
        ("task_graph: {file: grap.json}", "grap.json: no such file; did you mean 'graph.json'?"),
        ("replay: {timeline: graph.json}", "is not a list of events, as ray timeline writes it"),
        ("task_bag: {tasks: 1}\n      shuffle: {mappers: 1, reducers: 1, total_bytes: 1GB}",
         "a workload is one of task_bag"),
        ("task_bag: {tasks: 1}\n    script: main.py",
         "give one of script, workload, rayjob, data, exoshuffle, tune, rl, llm, serve, trainer"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_it_stands(tmp_path: Path, text: str, said: str) -> None:
    graph(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, text)
    assert said in "\n".join(map(str, caught.value.problems))


@pytest.mark.parametrize(
    ("attributes", "line", "said"),
    [
        ({"duration_s": "1s"}, 17, "'c'.duration_s: must be a number (got '1s')"),
        ({"cpus": 2}, 18, "'c'.cpus: is not one of duration_s, num_cpus"),
    ],
)
def test_what_is_wrong_in_a_graph_is_said_at_its_line(
    tmp_path: Path, attributes: dict[str, Any], line: int, said: str
) -> None:
    graph(tmp_path, **attributes)
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path, "task_graph: {file: graph.json}")
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{tmp_path / 'graph.json'}:{line}:")
    assert said in problem.message


def test_an_edge_to_nowhere_is_named(tmp_path: Path) -> None:
    text = '{"nodes": [{"id": "a", "duration_s": 1}], "edges": [{"source": "a", "target": "z"}]}'
    (tmp_path / "graph.json").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match="an edge names 'z', which is not among the nodes"):
        scenario(tmp_path, "task_graph: {file: graph.json}")


def test_a_graph_takes_as_long_as_its_longest_path(tmp_path: Path) -> None:
    graph(tmp_path)
    made = summary(tmp_path, "task_graph: {file: graph.json}")
    assert (made["program"]["exit"], made["tasks"]["finished"]) == ("ok", 3)
    assert made["program"]["script"] == "task_graph"
    assert 1.5 < made["run"]["seconds"] < 3.5  # 1 s, then 0.5 s; Ray needs 1.1 s to start
    assert made["compute"]["mode"] == "drawn"


def test_a_run_can_be_replayed_from_its_folder(tmp_path: Path) -> None:
    graph(tmp_path)
    first = raysim.run(scenario(tmp_path, "task_graph: {file: graph.json}"))
    folder = first.write(tmp_path / "out")
    again = raysim.run(load(folder / "scenario.resolved.yaml"))
    assert again.summary == first.summary
    (tmp_path / "sub").mkdir()
    text = "replay: {timeline: ../out/timeline.json, num_cpus: {task: 2}}"
    assert summary(tmp_path / "sub", text)["tasks"]["finished"] == 3


def test_one_key_is_changed_by_its_short_name(tmp_path: Path) -> None:
    made = scenario(tmp_path, "task_bag: {tasks: 5}", **{"workload.task_bag.tasks": 7})
    assert isinstance(made.job.workload, TaskBag)
    assert made.job.workload.tasks == 7


def test_the_first_error_of_a_workload_is_how_it_fails(tmp_path: Path) -> None:
    text = "task_bag: {tasks: 16, duration: 5s, uses: time, max_retries: 0}\n"
    with pytest.raises(ScenarioError, match=r"`faults: \[\{at: 4s, kill_worker_on: 0\}\]`"):
        summary(tmp_path, text + "faults: {at: 4s, kill_worker_on: 0}")
    made = summary(tmp_path, text + "faults: [{at: 4s, kill_worker_on: 0}]")
    assert (made["program"]["exit"], made["verdict"]["ok"]) == ("exception", False)
    assert made["program"]["message"].startswith("ray.exceptions.WorkerCrashedError")


def test_what_can_never_run_is_found_out_soon(tmp_path: Path) -> None:
    result = raysim.run(scenario(tmp_path, "task_bag: {tasks: 3, num_gpus: 1}"))
    made = result.summary
    assert made["program"]["exit"] == "hang"
    assert made["pending"]["causes"] == {"infeasible": 3}
    assert made["run"]["virtual_seconds"] < 2
    assert made["pending"]["driver_waits_at"] == "the driver of task_bag"
