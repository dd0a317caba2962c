"""BART that summarizes, under transformers' Trainer: encoder and decoder, fp16."""

import argparse

import torch
from transformers import BartConfig, BartForConditionalGeneration, Trainer, TrainingArguments


class Articles(torch.utils.data.Dataset):
    def __init__(self, samples, source, target):
        self.samples, self.source, self.target = samples, source, target

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {
            "input_ids": torch.randint(3, 50265, (self.source,)),
            "attention_mask": torch.ones(self.source, dtype=torch.long),
            "labels": torch.randint(3, 50265, (self.target,)),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--source", type=int, default=1024)
    parser.add_argument("--target", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    config = BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir="/tmp/summarize",
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        fp16=on_gpu and not args.bf16,
        bf16=on_gpu and args.bf16,
        learning_rate=3e-5,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
    )
    data = Articles(args.batch * args.steps, args.source, args.target)
    result = Trainer(model=model, args=arguments, train_dataset=data).train()
    print(f"{result.metrics['train_runtime']:.1f} s for {args.steps} steps")


if __name__ == "__main__":
    main()
