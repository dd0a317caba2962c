"""Llama 3 8B under transformers' Trainer; its tokens are random. Flags are TrainingArguments'.

Runs unmodified under the real ``deepspeed``, ``torchrun`` and ``accelerate launch``.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

HERE = Path(__file__).parent


@dataclass
class Job:
    """What is not the Trainer's."""

    config: str = field(default=str(HERE / "config.json"))
    block_size: int = field(default=4096, metadata={"help": "Tokens of a sample."})
    samples: int = field(default=100_000)


class Packed(Dataset[dict[str, Any]]):
    """Samples of one length, as after packing."""

    def __init__(self, job: Job, vocab_size: int) -> None:
        self.job, self.vocab_size = job, vocab_size

    def __len__(self) -> int:
        return self.job.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(0, self.vocab_size, (self.job.block_size,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main() -> None:
    parser = HfArgumentParser((Job, TrainingArguments))
    chosen = any(name.startswith("ACCELERATE_USE_") for name in os.environ)
    parser.set_defaults(
        deepspeed=None if chosen else str(HERE / "ds_zero3.json"),
        output_dir="out", max_steps=50, per_device_train_batch_size=2, bf16=True,
        gradient_accumulation_steps=4, activation_checkpointing=True, learning_rate=2e-5,
        warmup_steps=10, logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    job, args = parser.parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(job.config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    Trainer(model=model, args=args, train_dataset=Packed(job, config.vocab_size)).train()


if __name__ == "__main__":
    main()
