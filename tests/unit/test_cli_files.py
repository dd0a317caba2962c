"""`init` and `check` on real files: what is written loads, and what is printed loads again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raysim.cli import main
from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, load

BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 28996,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
AUTO = """{
  // the Trainer fills these
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "zero_optimization": {"stage": 2}, "bf16": {"enabled": true},
}"""
FIXED = '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
RAY_UP = """
provider: {type: aws, region: us-west-2}
head_node_type: head
available_node_types:
  head: {node_config: {InstanceType: m5.2xlarge}}
  worker: {node_config: {InstanceType: p4d.24xlarge}, min_workers: 2, max_workers: 4}
"""
KUBERAY = """
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
    rayStartParams: {}
    template: {spec: {containers: [{name: h, resources: {limits: {cpu: "8", memory: 32Gi}}}]}}
  workerGroupSpecs:
  - groupName: gpu-group
    replicas: 2
    rayStartParams: {}
    template: {spec: {containers: [{name: w, resources:
      {limits: {cpu: "96", memory: 800Gi, nvidia.com/gpu: "4"}}}]}}
"""


@pytest.fixture
def files(in_tmp: Path) -> None:
    Path("bert.json").write_text(json.dumps(BERT))
    Path("auto.json").write_text(AUTO)
    Path("fixed.json").write_text(FIXED)
    Path("ray.yaml").write_text(RAY_UP)
    Path("kube.yaml").write_text(KUBERAY)


def made(*arguments: str) -> dict[str, Any]:
    """What the starter means once loaded."""
    assert main(["init", "new", *arguments]) == 0
    scenario = load("new")
    plan = build_job(scenario).plan
    return {
        "gpus": scenario.cluster.num_gpus,
        "engine": plan.engine,
        "stage": plan.zero.stage,
        "batch": (plan.micro_batch, plan.gradient_accumulation_steps),
    }


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ([], {"gpus": 16, "engine": "deepspeed", "stage": 3, "batch": (1, 8)}),
        (["--from", "bert.json"], {"gpus": 16, "engine": "ddp", "stage": 0, "batch": (1, 8)}),
        (["--deepspeed", "auto.json"],
         {"gpus": 16, "engine": "deepspeed", "stage": 2, "batch": (1, 8)}),
        (["--deepspeed", "fixed.json", "--from", "bert.json"],
         {"gpus": 16, "engine": "deepspeed", "stage": 0, "batch": (4, 2)}),
        (["--cluster", "ray.yaml"],
         {"gpus": 16, "engine": "deepspeed", "stage": 3, "batch": (1, 8)}),
        (["--cluster", "kube.yaml", "--from", "bert.json", "--deepspeed", "auto.json"],
         {"gpus": 8, "engine": "deepspeed", "stage": 2, "batch": (1, 8)}),
    ],
)  # fmt: skip
def test_a_starter_loads_at_once_around_any_of_the_users_files(
    files: None, arguments: list[str], meant: dict[str, Any]
) -> None:
    assert made(*arguments) == meant


def test_files_are_copied_unchanged(files: None) -> None:
    made("--deepspeed", "auto.json", "--from", "bert.json")
    assert Path("new/auto.json").read_bytes() == Path("auto.json").read_bytes()
    assert Path("new/bert.json").read_bytes() == Path("bert.json").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [["--from", "absent.json"], ["--cluster", "bert.json"], ["--deepspeed", "ray.yaml"],
     ["--deepspeed", "."], ["--cluster", "absent"]],
)  # fmt: skip
def test_files_that_cannot_be_used_leave_no_folder(
    files: None, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["init", "new", *arguments]) == 2
    assert not Path("new").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_starter_says_what_the_files_did_not(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made("--from", "bert.json", "--cluster", "kube.yaml")
    said = " ".join(capsys.readouterr().out.split())
    assert "Assumed gpu-group hgx-h100-8, seq_len 512, micro_batch 1" in said
    assert "Next raysim run new" in said


@pytest.mark.parametrize("how", ['"offload_optimizer": {"device": "cpu"}', '"cpu_offload": true'])
def test_an_offloaded_optimizer_is_deepspeeds_own(files: None, how: str) -> None:
    Path("offload.json").write_text(f'{{"zero_optimization": {{"stage": 2, {how}}}}}')
    assert made("--from", "bert.json", "--deepspeed", "offload.json")["stage"] == 2
    assert "optimizer: DeepSpeedCPUAdam" in Path("new/scenario.yaml").read_text()


@pytest.mark.parametrize(
    ("batches", "nodes", "ranks"),
    [
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1}, 1, 8),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, 1, 8),
        ({"train_batch_size": 1}, 1, 1),
        ({"train_batch_size": 48, "gradient_accumulation_steps": 4}, 2, 12),
        ({"train_batch_size": 65536, "train_micro_batch_size_per_gpu": 64}, 2, 16),
        ({"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 32,
          "gradient_accumulation_steps": 1}, 16, 128),
        ({"train_batch_size": 16, "tensor_parallel": {"autotp_size": 4}}, 2, 16),
        ({"train_batch_size": 4, "tensor_parallel": {"autotp_size": 4}}, 1, 4),
    ],
)  # fmt: skip
def test_a_starter_has_the_ranks_that_its_batch_sizes_ask_for(
    files: None, batches: dict[str, object], nodes: int, ranks: int
) -> None:
    """train = micro x accumulation x data-parallel ranks, at most the starter's 16 where free."""
    Path("ds.json").write_text(json.dumps(batches))
    assert main(["init", "new", "--deepspeed", "ds.json"]) == 0
    made = load("new")
    assert isinstance(made, Scenario)
    assert sum(group.count for group in made.cluster.groups) == nodes
    assert made.strategy.mesh.world == ranks


def test_a_starter_of_an_autoscaled_cluster_asks_for_all_its_gpus(files: None) -> None:
    """Nodes with GPUs that only demand starts, three at most."""
    Path("up.yaml").write_text(
        "provider: {type: aws}\nhead_node_type: head\nmax_workers: 9\navailable_node_types:\n"
        "  head: {node_config: {InstanceType: m5.large}}\n"
        "  gpu: {node_config: {InstanceType: g5.12xlarge}, min_workers: 0, max_workers: 3}\n"
    )
    assert main(["init", "new", "--cluster", "up.yaml"]) == 0
    made = load("new")
    assert isinstance(made, Scenario)
    assert made.strategy.mesh.world == 12
    scenario = Path("new/scenario.yaml")
    lines = scenario.read_text().splitlines(keepends=True)
    scenario.write_text("".join(line for line in lines if "workers:" not in line))
    with pytest.raises(ScenarioError, match="no GPUs at the start; say how many workers"):
        load("new")


def test_init_never_touches_what_is_there(files: None) -> None:
    Path("new").mkdir()
    Path("new/mine").write_text("x")
    assert main(["init", "new"]) == 2
    assert [p.name for p in Path("new").iterdir()] == ["mine"]
    assert main(["init", "bert.json"]) == 2


def test_two_files_of_one_name_are_both_kept(files: None) -> None:
    for folder, text in (("model", json.dumps(BERT)), ("engine", FIXED)):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(text)
    given = ["--from", "model/config.json", "--deepspeed", "engine/config.json"]
    assert main(["init", "new", *given]) == 0
    scenario = load("new")
    assert isinstance(scenario, Scenario)
    assert scenario.strategy.batch.micro == 4
    assert build_job(scenario).plan.model.model_type == "bert"
    assert main(["init", "starter", "--deepspeed", "engine/config.json"]) == 0
    scenario = load("starter")
    assert isinstance(scenario, Scenario)
    assert scenario.strategy.batch.micro == 4


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["init", "new", "--deepspeed", "bert.json"], "it is model.from (init: --from)"),
        (["init", "new", "--from", "auto.json"], "--from config.json --deepspeed auto.json"),
        (["memory", "auto.json"], "is a DeepSpeed configuration, not a Hugging Face config.json"),
        (["memory", "lora.json"], "--peft lora.json"),
        (["run", "acc.yaml"], "`raysim init NAME --from config.json --deepspeed acc.yaml`"),
        (["run", "ray.yaml"], "`raysim init NAME --cluster ray.yaml`"),
        (["init", "new", "--deepspeed", "axolotl.yaml"], "give the DeepSpeed JSON, zero3.json,"),
    ],
)
def test_one_file_in_the_place_of_another_is_told(
    files: None, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    Path("lora.json").write_text('{"peft_type": "LORA", "r": 8}')
    Path("acc.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n")
    Path("ray.yaml").write_text("cluster_name: old\nhead_node: {InstanceType: m5.large}\n")
    Path("axolotl.yaml").write_text(
        "base_model: NousResearch/Llama-3.2-1B\ndeepspeed: zero3.json\n"
    )
    assert main(command) == 2
    assert said in capsys.readouterr().err
    assert not Path("new").exists()


def test_what_check_prints_is_the_same_scenario(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made("--deepspeed", "auto.json", "--cluster", "kube.yaml")
    capsys.readouterr()
    assert main(["check", "new"]) == 0
    first = capsys.readouterr().out
    Path("again.yaml").write_text(first)
    assert main(["check", "again.yaml"]) == 0
    assert load("again.yaml").resolved() == load("new").resolved()
    one, other = (build_job(load(name)).plan for name in ("again.yaml", "new"))
    assert one.zero == other.zero
    assert one.mesh == other.mesh
    assert one.model.num_parameters == other.model.num_parameters


def test_check_says_every_default_and_every_warning(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made("--deepspeed", "auto.json")
    capsys.readouterr()
    main(["check", "new", "--set", "faults.gpu_mtbf=50000h"])
    out = capsys.readouterr().out
    scenario = load("new", {"faults.gpu_mtbf": "50000h"})
    assert scenario.notes
    assert scenario.warnings
    for problem in (*scenario.notes, *scenario.warnings):
        assert f"#   {problem}" in out


def test_check_points_at_the_line(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    made()
    text = Path("new/scenario.yaml").read_text().replace("seq_len", "seq_lenn")
    Path("new/scenario.yaml").write_text(text)
    capsys.readouterr()
    assert main(["check", "new"]) == 2
    out, err = capsys.readouterr()
    line = 1 + next(n for n, s in enumerate(text.splitlines()) if "seq_lenn:" in s)
    assert out == ""
    assert err.startswith(f"new/scenario.yaml:{line}:7")
    assert "did you mean 'seq_len'" in err


def test_explain_says_the_value_in_a_scenario(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made()
    capsys.readouterr()
    assert main(["check", "new", "--explain", "train.seq_len"]) == 0
    assert "here     4096" in capsys.readouterr().out


def test_a_starter_runs_and_its_resolved_scenario_replays_it(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made("--from", "bert.json", "--cluster", "kube.yaml")
    capsys.readouterr()
    assert main(["run", "new", "--json", "-o", "first"]) == 0
    first = capsys.readouterr().out
    assert main(["run", "first/scenario.resolved.yaml", "--json", "-o", "second"]) == 0
    assert capsys.readouterr().out == first
    assert Path("first/trace.pftrace").read_bytes() == Path("second/trace.pftrace").read_bytes()


def test_another_seed_is_another_run(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    made("--from", "bert.json")
    capsys.readouterr()
    ids = set()
    for seed in ("1", "2", "1"):
        main(["run", "new", "--json", "--no-trace", "--seed", seed])
        summary = json.loads(capsys.readouterr().out)
        assert summary["seed"] == int(seed)
        ids.add(summary["run_id"])
    assert len(ids) == 2
    assert len(list(Path("runs").iterdir())) == 2


def test_a_family_that_nobody_knows_is_said_before_it_runs(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.json").write_text(json.dumps(BERT | {"model_type": "bertt"}))
    assert main(["init", "new", "--from", "odd.json"]) == 0
    captured = capsys.readouterr()
    assert "Before it runs, these need an answer" in captured.out
    assert "did you mean 'bert'?" in captured.err


def test_the_length_of_a_model_of_text_and_images_is_its_texts(files: None) -> None:
    text = {"model_type": "gemma3_text", "max_position_embeddings": 131072, "hidden_size": 2560}
    Path("both.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    main(["init", "new", "--from", "both.json"])
    assert "seq_len: 4096" in Path("new/scenario.yaml").read_text()


@pytest.mark.parametrize(
    ("blocks", "precision"),
    [
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "bf16"),
        ({"fp16": {"enabled": "auto"}}, "fp16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, "fp16"),
        ({}, "fp32"),
    ],
)
def test_a_starter_fills_the_precision_that_the_trainer_would(
    files: None, blocks: dict[str, object], precision: str
) -> None:
    """Nobody trains in fp32 by leaving both at "auto": --bf16 or --fp16 is given."""
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, **blocks}))
    assert main(["init", "new", "--deepspeed", "ds.json"]) == 0
    made = load("new")
    assert isinstance(made, Scenario)
    assert made.strategy.precision == precision


def test_a_cluster_without_gpus_is_for_programs(
    files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("up.yaml").write_text("cluster_name: minimal\nprovider: {type: aws, region: us-west-2}\n")
    assert main(["init", "new", "--cluster", "up.yaml"]) == 0
    said = capsys.readouterr().err
    assert "train.workers: the cluster has no GPUs (m5.large); say which node has them" in said
    assert "raysim run script.py --cluster FILE" in said
