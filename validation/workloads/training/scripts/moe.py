"""A small Qwen3 mixture of experts under transformers' Trainer."""

import argparse

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, samples, length):
        self.samples, self.length = samples, length

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        ids = torch.randint(0, 32000, (self.length,))
        return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    config = Qwen3MoeConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=3072, moe_intermediate_size=512,
        num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        num_experts=args.experts, num_experts_per_tok=4, use_cache=False,
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Qwen3MoeForCausalLM(config)
    arguments = TrainingArguments(
        output_dir="/tmp/moe",
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        bf16=device == "cuda",
        learning_rate=1e-4,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
    )
    data = Tokens(args.batch * args.steps, args.length)
    result = Trainer(model=model, args=arguments, train_dataset=data).train()
    print(f"{result.metrics['train_runtime']:.1f} s for {args.steps} steps")


if __name__ == "__main__":
    main()
