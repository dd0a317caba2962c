"""BERT for sequence classification under transformers' Trainer, fp16 or bf16."""

import argparse

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, samples, length):
        self.samples, self.length = samples, length

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {
            "input_ids": torch.randint(0, 30522, (self.length,)),
            "attention_mask": torch.ones(self.length, dtype=torch.long),
            "labels": torch.tensor(index % 2),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="fp16")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="/tmp/trainer_bert")
    args = parser.parse_args()
    config = BertConfig(num_labels=2)
    if args.large:
        config = BertConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096, num_labels=2,
        )  # fmt: skip
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir=args.out,
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        fp16=args.precision == "fp16",
        bf16=args.precision == "bf16",
        learning_rate=2e-5,
        logging_steps=500,
        save_strategy="no",
        report_to="none",
    )
    data = Sentences(args.batch * args.steps, args.length)
    result = Trainer(model=model, args=arguments, train_dataset=data).train()
    print(f"{result.metrics['train_steps_per_second']:.2f} steps/s")


if __name__ == "__main__":
    main()
