"""Gemma 2 (soft caps, sliding windows, a vocabulary of 256,000) under transformers' Trainer."""

import argparse

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, samples, length):
        self.samples, self.length = samples, length

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        ids = torch.randint(0, 256000, (self.length,))
        return {"input_ids": ids, "labels": ids.clone()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--attention", default="eager")
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    config = Gemma2Config(
        vocab_size=256000, hidden_size=1152, intermediate_size=6912, head_dim=128,
        num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=4,
        sliding_window=512, query_pre_attn_scalar=128, use_cache=False,
        attn_implementation=args.attention,
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Gemma2ForCausalLM(config)
    arguments = TrainingArguments(
        output_dir="/tmp/gemma",
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        bf16=device == "cuda",
        tf32=True if device == "cuda" else None,
        optim="adamw_torch_fused",
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    data = Tokens(args.batch * args.accumulation * args.steps, args.length)
    result = Trainer(model=model, args=arguments, train_dataset=data).train()
    print(f"{result.metrics['train_runtime']:.1f} s for {args.steps} steps")


if __name__ == "__main__":
    main()
