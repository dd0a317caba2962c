"""An LLM on a cluster: bundles, cold start, what clients see; and what a scenario may say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.models.config import read_config
from raysim.models.mixers import UNTIMED
from raysim.raycore.cluster import Cluster
from raysim.raycore.state_log import StateLog
from raysim.raylibs.llm.config import ColdStart, LLMApp, default_ingress_replicas
from raysim.raylibs.report import LibraryReport
from raysim.serving.decoder import read_decoder
from raysim.serving.fleet import IngressSpec
from raysim.serving.loads import Lengths, Load
from raysim.serving.settings import EngineSettings
from raysim.workloads.llm_job import LlmJob
from tests.stories.ray_scripts import run

ROOT = Path(__file__).parents[4]
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
LOAD = Load(prompt=Lengths(mean=500), output=Lengths(mean=50), requests=200, concurrency=20)


def job(load: Load = LOAD, **changes: Any) -> LlmJob:
    app = LLMApp(
        model="llama", decoder=read_decoder(CONFIG),
        engine=EngineSettings(tensor_parallel_size=2, max_model_len=8192), cold_start=None,
    )  # fmt: skip
    return LlmJob(app=replace(app, **changes), load=load)


def report(asked: LlmJob, nodes: int = 1) -> LibraryReport:
    group = NodeGroup(name="head", node=catalog.node("hgx-h100-8"), count=nodes, head=True)
    spec = ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))
    cluster = Cluster(Simulation(), spec, log=StateLog(enabled=False))
    said: LibraryReport = run(cluster, lambda d: asked.main(d, cluster.sim.rng), until="3h")
    return said


def test_clients_see_littles_law_through_a_cluster() -> None:
    asked = job(replace(LOAD, requests=2_000), num_replicas=3)
    said = report(asked)
    assert said.ok
    assert asked.metrics.keys() - said.metrics.keys() == {"usd_per_million_output_tokens"}
    waits = [said.metrics[f"ttft_p{percent}"] for percent in (50, 90, 95, 99)]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]
    each_s = said.metrics["ttft_mean"] + 49 * said.metrics["tpot_mean"]
    assert said.metrics["requests_per_s"] == pytest.approx(20 / each_s, rel=0.01)
    assert said.metrics["tokens_per_gpu_s"] == pytest.approx(
        said.metrics["output_tokens_per_s"] / 6
    )


def test_a_cold_replica_takes_its_phases() -> None:
    cold = ColdStart()
    warm, slow = report(job()), report(job(cold_start=cold))
    longer_s = slow.metrics["cold_start"] - warm.metrics["cold_start"]
    assert longer_s == pytest.approx(cold.seconds(read_decoder(CONFIG)), abs=0.01)
    assert longer_s == pytest.approx(40 + 16.06 / 0.621 + 32 * 0.96 + 15, rel=0.01)
    assert slow.metrics["ttft_mean"] == pytest.approx(warm.metrics["ttft_mean"], rel=0.01)


def test_a_model_without_room_is_a_result() -> None:
    said = report(job(engine=EngineSettings(max_model_len=10_000_000)))
    assert not said.ok
    assert "a sequence may have 10,000,000" in said.text


def test_a_hybrid_is_served_from_its_published_config_and_says_what_was_never_timed() -> None:
    config = read_config(ROOT / "tests/data/hf_configs/qwen3.5-27b.json")
    said = report(job(decoder=read_decoder(config)))
    assert said.ok
    assert UNTIMED in said.simplifications
    assert UNTIMED not in report(job()).simplifications


def test_an_engine_of_two_nodes_waits_for_both_and_serves() -> None:
    config = read_config(ROOT / "tests/data/hf_configs/llama-3.1-405b.json")
    two = EngineSettings(tensor_parallel_size=8, pipeline_parallel_size=2, max_model_len=8192)
    asked = job(decoder=read_decoder(config), engine=two)
    said = report(asked, nodes=2)
    assert said.ok
    assert said.text.startswith("llama on 16 GPUs")
    one = report(job(decoder=read_decoder(config), engine=replace(two, pipeline_parallel_size=1)))
    assert not one.ok
    assert "leave no room for keys and values" in one.text


def test_one_ingress_binds_and_says_so() -> None:
    slow = IngressSpec(replicas=1, token_s=2e-3)
    said = report(job(replace(LOAD, requests=500, concurrency=100), ingress=slow))
    assert said.bound_by.startswith("The ingress")
    assert [w.code for w in said.warnings] == ["llm-ingress-bound"]
    assert said.metrics["output_tokens_per_s"] == pytest.approx(500, rel=0.1)


def test_serve_has_two_ingress_replicas_per_engine_from_two_to_ten() -> None:
    assert [default_ingress_replicas(n) for n in (1, 2, 4, 8)] == [2, 4, 8, 10]


def scenario(folder: Path, llm: str, config: dict[str, Any] = CONFIG) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = (
        "raysim: 1\nname: x\ncluster: {nodes: 1, node: p5.48xlarge}\njobs:\n"
        f"  - llm: {{model: config.json, {llm}}}\n"
    )
    (folder / "scenario.yaml").write_text(text, encoding="utf-8")
    return folder


SENDS = "load: {prompt: {mean: 100}, output: {mean: 10}, requests: 50, concurrency: 5}"


def test_a_scenario_runs_and_repeats_itself(tmp_path: Path) -> None:
    read = raysim.load(scenario(tmp_path, SENDS))
    first, again = (str(raysim.run(read, record=False)) for _ in range(2))
    assert first == again
    assert "llama 8.03 B on 1 GPU:" in first


def test_what_a_million_tokens_cost_and_that_requests_are_served_meanwhile(tmp_path: Path) -> None:
    read = raysim.load(
        scenario(tmp_path, SENDS),
        {"targets": {"usd_per_million_output_tokens": "<= $1000"}, "cluster.node": "p5.48xlarge"},
    )
    result = raysim.run(read, record=False)
    cost, (job_,) = result.summary["cost"], result.summary["libraries"]
    per_hour = job_["metrics"]["output_tokens_per_s"] * 3600
    each = cost["usd_per_million_output_tokens"]
    assert each == pytest.approx(cost["usd_per_hour"] / per_hour * 1e6, rel=1e-3)
    assert [t["passed"] for t in result.summary["targets"]] == [True]
    parts = {row["key"]: row["name"] for row in result.summary["time"]}
    assert parts["own"] == "requests are served"
    assert "per million output tokens" in " ".join(str(result).split())


def test_replicas_without_room_are_what_binds(tmp_path: Path) -> None:
    many = scenario(tmp_path, f"{SENDS}, replicas: 9")
    said = raysim.run(raysim.load(many), record=False).summary["bound_by"]["text"]
    assert said.startswith("1 placement group (STRICT_PACK) of 1 CPU and 1 GPU each waits for room")


@pytest.mark.parametrize(
    ("llm", "said"),
    [
        (SENDS.replace(", concurrency: 5", ""), "give a rate, or a concurrency, or both"),
        (f"{SENDS}, engine_kwargs: {{max_num_seq: 3}}", "did you mean 'max_num_seqs'?"),
        (f"{SENDS}, engine_kwargs: {{pipeline_parallel_size: 0}}", "whole number of at least 1"),
        (f"{SENDS}, replicas: 0", "jobs.0.llm.replicas"),
        (SENDS.replace("concurrency: 5", "rate: 5/day"), "expected a rate such as '20/s'"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(tmp_path: Path, llm: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"scenario\.yaml:5:") as caught:
        raysim.load(scenario(tmp_path, llm))
    assert said in str(caught.value)


def test_a_model_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"'bert' cannot be served yet"):
        raysim.load(scenario(tmp_path, SENDS, {"model_type": "bert"}))


def test_prompts_that_are_cut_to_the_engines_length_are_said() -> None:
    cut = replace(LOAD, prompt=Lengths(mean=2000), max_model_len=1000, requests=20)
    (warning,) = report(job(cut)).warnings
    assert warning.code == "llm-too-long"
    assert "100% of the requests are longer than max_model_len 1,000" in warning.cause
    assert not report(job(replace(LOAD, max_model_len=8192, requests=20))).warnings


@pytest.mark.parametrize(("said", "per_s"), [("15", 15.0), ("15/s", 15.0), ("90/min", 1.5)])
def test_a_load_says_its_rate_with_or_without_a_unit(
    tmp_path: Path, said: str, per_s: float
) -> None:
    read: Any = raysim.load(scenario(tmp_path, SENDS.replace("concurrency: 5", f"rate: {said}")))
    assert read.job.library.load.rate_per_s == per_s
