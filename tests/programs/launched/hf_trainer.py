"""A small Llama under transformers' Trainer, its tokens random; flags are TrainingArguments'."""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


class Tokens(Dataset):
    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (self.length,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main():
    folder, *flags = sys.argv[1:]
    flags = [flag for flag in flags if not flag.startswith("--local_rank")]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    config = AutoConfig.from_pretrained(Path(folder))
    attention = os.environ.get("ATTENTION", "sdpa")
    asked = {"dtype": torch.float32, "attn_implementation": attention}
    if os.environ.get("DOOR") == "from_pretrained":
        model = AutoModelForCausalLM.from_pretrained(folder, **asked)
    else:
        model = AutoModelForCausalLM.from_config(config, **asked)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Tokens(4096, 128, config.vocab_size),
        eval_dataset=Tokens(64, 128, config.vocab_size),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        logged = [log for log in trainer.state.log_history if "loss" in log]
        rates = [f"{log['learning_rate']:.3g}" for log in logged]
        print(trainer.state.global_step, type(trainer.model_wrapped).__name__, *rates)


main()
