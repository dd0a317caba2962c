"""Accelerate's config of DeepSpeed in the place of DeepSpeed's JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.cli import main
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
