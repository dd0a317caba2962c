"""PEFT's adapters under transformers' Trainer, beside weights of 16 and of 4 bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch  # noqa: E402

import raysim  # noqa: E402
from raysim.rayapi.huggingface.four_bit import asked_for, saved_so  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.scenario.build import build_job  # noqa: E402
from tests.real.test_huggingface import AUTOCAST, FILES, said  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402

LORA_SCRIPT = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        ids = torch.randint(0, 1000, (1024,))
        return {"input_ids": ids, "labels": ids}

config = AutoConfig.from_pretrained(".")
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
args = TrainingArguments(
    "out", per_device_train_batch_size=4, bf16=True, max_steps=4, report_to="none",
    save_strategy="no", disable_tqdm=True,
)
Trainer(model=model, args=args, train_dataset=Data()).train()
"""


FOUR_BITS = """
from transformers import BitsAndBytesConfig
four_bits = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(
    ".", quantization_config=four_bits, dtype=torch.bfloat16, device_map={"": 0}
)
print(model.num_parameters())
"""
WHOLE = "model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)\n"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("four_bits", [False, True])
def test_peft_s_adapters_under_the_trainer_are_the_scenario_s(
    in_tmp: Path, *, four_bits: bool
) -> None:
    """Traced with the script's fp32 adapters beside 16-bit weights; there, a table rewritten."""
    wide = FILES["config.json"] | {
        "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 128,
    }  # fmt: skip
    (in_tmp / "config.json").write_text(json.dumps(wide))
    script = LORA_SCRIPT.replace(WHOLE, FOUR_BITS) if four_bits else LORA_SCRIPT
    (in_tmp / "lora.py").write_text(script)
    printed, report = launched("torchrun", "--nproc-per-node", "8", str(in_tmp / "lora.py"))
    said(in_tmp, AUTOCAST)
    changes = {
        "train.ddp": {}, "train.precision": "bf16", "train.seq_len": 1024,
        "train.peft": {"r": 16, "target_modules": "all-linear"},
    }  # fmt: skip
    if four_bits:
        changes["train.quantization"] = {"bnb_4bit_use_double_quant": True}
    scenario = raysim.load(in_tmp).with_(changes)
    summary = raysim.run(scenario).summary
    seconds, peak_bytes = summary["step"]["seconds"], summary["memory"]["peak_bytes"]
    assert report.tables[0].rows[0][:2] == ("PeftModel, DDP, 8 GPUs", 4)
    more_s = report.metrics["step_seconds"] - seconds  # the Trainer's loop among it
    assert -0.05 * seconds < more_s < 0.05 * seconds + 4e-3
    # A traced module's temporaries, and with them what the allocator keeps, are not the table's.
    assert report.metrics["gpu_mem_peak_bytes"] == pytest.approx(peak_bytes, rel=0.08)
    if four_bits:
        whole = scenario.with_({"train.peft": None, "train.quantization": None})
        assert str(build_job(whole).plan.model.num_parameters) in printed


def test_checkpoints_that_are_saved_in_4_bits_are_read_so() -> None:
    config = transformers.LlamaConfig(quantization_config={"load_in_4bit": True})
    assert saved_so(config).load_in_4bit
    assert saved_so(transformers.LlamaConfig()) is None
    assert saved_so(transformers.LlamaConfig(quantization_config={"quant_method": "fp8"})) is None


def test_weights_in_8_bits_are_refused() -> None:
    kept, eight = {"quant_method": "mxfp4", "dequantize": True}, {"load_in_8bit": True}
    assert asked_for(None) is None
    assert asked_for(kept) is None
    assert asked_for({"load_in_4bit": True}).bnb_4bit_compute_dtype == torch.float32
    with pytest.raises(NotEmulatedError, match="BitsAndBytesConfig"):
        asked_for(transformers.BitsAndBytesConfig(**eight))
