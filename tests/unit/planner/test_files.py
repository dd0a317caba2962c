"""What a plan leaves: a table, a summary, files that the real things take."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from ruamel.yaml import YAML

import raysim
from raysim.planner.files import deploy_files, write
from raysim.planner.plan import Question, plan
from tests.unit.planner.parts import NODES, SPACE, scenario


@pytest.fixture(scope="module")
def answer():
    return plan(scenario(), Question(vary=SPACE, maximize="tokens_per_s"))


def test_the_folder_replays_the_choice(answer, tmp_path):
    names = write(answer, tmp_path)
    assert all((tmp_path / name).exists() for name in names)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    best = frame.loc[frame.tokens_per_s.idxmax()]
    again = raysim.run(raysim.load(tmp_path / "best" / "scenario.yaml"), record=False)
    assert again.summary["throughput"]["tokens_per_s"] == pytest.approx(best.tokens_per_s)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best"]["metrics"]["tokens_per_s"] == best.tokens_per_s
    assert summary["tried"] == summary["size"] == 8


def test_deepspeeds_json_says_the_batch_and_nothing_is_auto(answer):
    chosen = answer.chosen()
    files = deploy_files(chosen)
    config = json.loads(files["ds_config.json"])
    batch = chosen.strategy.batch
    world = chosen.strategy.mesh.dp
    assert config["train_batch_size"] == batch.micro * batch.accumulation * world
    assert config["zero_optimization"]["stage"] == chosen.strategy.deepspeed.zero.stage
    assert '"auto"' not in files["ds_config.json"]


def test_the_users_cluster_file_has_the_chosen_sizes():
    two = scenario(**{NODES: 2, "train.workers": None})
    group = YAML().load(deploy_files(two)["raycluster.yaml"])["spec"]["workerGroupSpecs"][0]
    assert [group[k] for k in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]


def test_a_ray_up_file_too():
    said = raysim.load("scenarios/llama31_8b_sft")
    files = deploy_files(said)
    name = "cluster.yaml" if "cluster.yaml" in files else "raycluster.yaml"
    assert YAML().load(files[name])


def test_a_cluster_of_a_scenarios_own_becomes_a_raycluster():
    inline = scenario(**{"cluster": {"node": "dgx-a100-80-8", "nodes": 1}, "train.workers": None})
    spec = YAML().load(deploy_files(inline)["raycluster.yaml"])["spec"]
    limits = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"


def test_a_key_of_numbers_and_words_is_kept_as_json(tmp_path):
    key = "train.deepspeed.zero_optimization.reduce_bucket_size"
    write(plan(scenario(), Question(vary={key: ["auto", 100_000_000]})), tmp_path)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert [json.loads(v) for v in frame[key]] == ["auto", 100_000_000]
