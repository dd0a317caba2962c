"""Accelerate's config of DeepSpeed in the place of DeepSpeed's JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.cli import main
from raysim.cli.init_engine import read_engine
from raysim.errors import ScenarioError
from raysim.scenario.accelerate_deepspeed import read_deepspeed_file
from raysim.scenario.load import Scenario, load

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: no
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""


def test_it_is_the_json_that_accelerate_gives_deepspeed(tmp_path: Path) -> None:
    """``DeepSpeedPlugin``: devices that are none are none in DeepSpeed too, and left out here."""
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    document = read_deepspeed_file(tmp_path / "acc.yaml", "acc.yaml")
    assert document.data == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
    said = str(document.problem(("zero_optimization", "stage"), "x"))
    assert said.startswith("acc.yaml:9:15")


def test_a_starter_around_it_loads_and_its_resolved_scenario_too(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    assert main(["init", str(tmp_path / "new"), "--deepspeed", str(tmp_path / "acc.yaml")]) == 0
    made = load(tmp_path / "new")
    assert isinstance(made, Scenario)
    config = made.strategy.deepspeed
    assert config is not None
    assert (config.zero.stage, config.precision, config.gradient_clipping) == (3, "bf16", 0.5)
    assert (config.gradient_accumulation_steps, config.zero.offload_optimizer.device) == (4, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("DEEPSPEED", "FSDP", "distributed_type: 'FSDP' in Accelerate's config; give it as train"),
        ("DEEPSPEED", "MULTI_GPU", "it trains with DDP"),
        ("  zero_stage: 3", "  deepspeed_config_file: ds.json", "Accelerate reads 'ds.json'"),
        ("deepspeed_config:", "deepspeed_config: 3\nx:", "deepspeed_config: expected a mapping"),
    ],
)
def test_what_starts_something_else_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    (tmp_path / "acc.yaml").write_text(ACCELERATE.replace(old, new))
    with pytest.raises(ScenarioError) as caught:
        read_deepspeed_file(tmp_path / "acc.yaml", "acc.yaml")
    assert said in str(caught.value)


FSDP = """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""


def started(tmp_path: Path, text: str) -> Scenario:
    """The starter around Accelerate's config and a Llama of the repository."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "acc.yaml").write_text(text)
    config = "scenarios/llama3_8b_zero3/config.json"
    new = str(tmp_path / "new")
    assert main(["init", new, "--from", config, "--deepspeed", str(tmp_path / "acc.yaml")]) == 0
    made = load(new)
    assert isinstance(made, Scenario)
    return made


def test_a_starter_trains_with_what_the_config_starts(tmp_path: Path) -> None:
    """Accelerate keeps FSDP's and DDP's parameters in fp32 under mixed precision."""
    made = started(tmp_path / "a", FSDP)
    assert (made.strategy.engine, made.strategy.precision) == ("fsdp", "fp32")
    assert made.strategy.fsdp is not None
    assert made.strategy.fsdp.version == 2
    assert made.strategy.mesh.world == made.cluster.num_gpus - 4 == 4
    assert made.spec.train.activation_checkpointing == "full"

    made = started(tmp_path / "b", FSDP.replace("FSDP", "MULTI_GPU", 1))
    assert (made.strategy.engine, made.strategy.precision) == ("ddp", "fp32")
    assert (made.spec.train.ddp.autocast, made.strategy.mesh.world) == ("bf16", 4)

    made = started(tmp_path / "c", FSDP.replace("FSDP", "NO", 1).replace("bf16", "'no'"))
    assert (made.strategy.precision, made.strategy.mesh.world) == ("bf16", 1)


def test_a_json_that_it_points_to_is_read_and_copied(tmp_path: Path) -> None:
    """``prepare_deepspeed`` makes Ulysses' groups of ``parallelism_config``, not of the JSON."""
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": true}, "gradient_clipping": 0.25}')
    pointing = ACCELERATE.replace("  zero_stage: 3", "  deepspeed_config_file: configs/ds.json")
    groups = "parallelism_config:\n  parallelism_config_sp_size: 2\n"
    made = started(tmp_path, pointing + groups)
    config = made.strategy.deepspeed
    assert config is not None
    assert (config.zero.stage, config.gradient_clipping) == (0, 0.25)
    assert (made.strategy.mesh.world, made.strategy.mesh.cp) == (8, 2)
    assert (tmp_path / "new" / "ds.json").is_file()
    (tmp_path / "acc.yaml").write_text(pointing + groups.replace("sp_size", "tp_size"))
    with pytest.raises(ScenarioError, match="tp_size: is not simulated with DeepSpeed"):
        read_deepspeed_file(tmp_path / "acc.yaml", "acc.yaml")


def test_fp8_outside_of_fsdp_says_where_to_say_it(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: fp8\n")
    with pytest.raises(ScenarioError, match=r"say it with train\.fp8"):
        read_engine(tmp_path / "acc.yaml", None)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('"elasticity": {"enabled": false}', "0.19.6"),
        ('"optimizer": {"type": "OneBitAdam"}', "0.19.6"),
        ('"zero_optimization": {"stage": 3, "mics_shard_size": 8}', "0.19.6"),
        ('"optimizer": {"type": "Adam"}', None),
    ],
)  # fmt: skip
def test_keys_that_deepspeed_removed_choose_a_release_that_has_them(
    tmp_path: Path, text: str, release: str | None
) -> None:
    (tmp_path / "ds.json").write_text(f'{{"train_batch_size": 8, {text}}}')
    config = "scenarios/llama3_8b_zero3/config.json"
    new = str(tmp_path / "new")
    assert main(["init", new, "--from", config, "--deepspeed", str(tmp_path / "ds.json")]) == 0
    made = load(new)
    assert isinstance(made, Scenario)
    assert made.spec.train.deepspeed_version == release
