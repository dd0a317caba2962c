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


EIGHT_BITS = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

model = AutoModelForCausalLM.from_pretrained(
    ".", quantization_config=BitsAndBytesConfig(load_in_8bit=True), dtype=torch.bfloat16
)
assert model.is_loaded_in_8bit
print(model.num_parameters(), model.model.layers[0].mlp.up_proj.weight.dtype)
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
model.print_trainable_parameters()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    ids = torch.randint(0, 1000, (4, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
"""


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_beside_weights_of_8_bits(in_tmp: Path) -> None:
    """Of which each is a byte; embedding, norms and head are made fp32 by PEFT."""
    (in_tmp / "eight.py").write_text(EIGHT_BITS)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=8, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(in_tmp)
    with torch.device("meta"):
        named = dict(transformers.LlamaForCausalLM(config).named_parameters())
    linear = sum(p.numel() for n, p in named.items() if n.endswith("proj.weight"))
    whole = sum(p.numel() for p in named.values())
    printed, report = launched("python", str(in_tmp / "eight.py"))
    assert printed[0] == f"{whole} torch.int8"
    adapters = config.num_hidden_layers * 2 * 16 * 2 * config.hidden_size
    assert f"trainable params: {adapters:,}" in printed[1]
    memory = next(t for t in report.tables if t.title.startswith("Memory"))
    held = {str(name): size for name, size, _ in memory.rows}
    expected = linear + 4 * (whole - linear) + 4 * adapters
    assert held["parameter"] == pytest.approx(expected, rel=0.03)


def test_weights_of_8_bits_that_are_16_bits_are_refused() -> None:
    kept, eight = {"quant_method": "mxfp4", "dequantize": True}, {"load_in_8bit": True}
    assert asked_for(None) is None
    assert asked_for(kept) is None
    assert asked_for({"load_in_4bit": True}).bnb_4bit_compute_dtype == torch.float32
    assert asked_for(transformers.BitsAndBytesConfig(**eight)).llm_int8_threshold == 6.0
    with pytest.raises(NotEmulatedError, match="llm_int8_has_fp16_weight"):
        asked_for({**eight, "llm_int8_has_fp16_weight": True})
    with pytest.raises(NotEmulatedError, match="4 or 8 bits"):
        asked_for({"quant_method": "gptq"})
