"""Fine-tuning DeBERTa v3 on pairs of sentences under transformers' Trainer, padded as they come."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Pairs(Dataset):
    def __init__(self, length):
        self.words = torch.randint(5, 128_000, (4_096, length))
        self.labels = torch.randint(0, 3, (4_096,))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = self.words[i]
        return {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": self.labels[i],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    config = DebertaV2Config(
        vocab_size=128_100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, relative_attention=True, position_buckets=256, num_labels=3,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=DebertaV2ForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=args.batch,
                max_steps=30,
                fp16=args.fp16,
                bf16=not args.fp16,
                learning_rate=2e-5,
                warmup_steps=10,
                report_to="none",
                save_strategy="no",
                dataloader_num_workers=2,
            ),  # fmt: skip
            train_dataset=Pairs(args.length),
        ).train()


if __name__ == "__main__":
    main()
