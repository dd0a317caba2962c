"""T5 (base) under accelerate, bf16, Adafactor of transformers or AdamW."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration, get_scheduler
from transformers.optimization import Adafactor


class Pairs(Dataset):
    def __init__(self, samples, length, target):
        self.samples, self.length, self.target = samples, length, target

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {
            "input_ids": torch.randint(0, 32000, (self.length,)),
            "attention_mask": torch.ones(self.length, dtype=torch.long),
            "labels": torch.randint(0, 32000, (self.target,)),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--target", type=int, default=128)
    parser.add_argument("--adafactor", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision="bf16")
    config = T5Config(
        vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    if args.adafactor:
        optimizer = Adafactor(
            model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(
        Pairs(args.batch * args.steps, args.length, args.target), batch_size=args.batch
    )
    scheduler = get_scheduler(
        "linear", optimizer, num_warmup_steps=0, num_training_steps=args.steps
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    start = time.perf_counter()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.3f}")
    accelerator.print(f"{args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
