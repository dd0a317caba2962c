"""Named entities with DistilBERT: sentences of all lengths, padded per batch, Accelerate, AdamW."""

import argparse

import torch
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
    get_linear_schedule_with_warmup,
)


def collate(rows):
    words = pad_sequence([w for w, _ in rows], batch_first=True)
    labels = pad_sequence([y for _, y in rows], batch_first=True, padding_value=-100)
    return {"input_ids": words, "attention_mask": (words > 0).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--accumulation", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=args.accumulation)
    torch.manual_seed(0)
    lengths = torch.randint(args.longest // 4, args.longest + 1, (4_096,)).tolist()
    rows = [(torch.randint(1, 30_522, (n,)), torch.randint(0, 9, (n,))) for n in lengths]
    loader = DataLoader(rows, batch_size=args.batch, shuffle=True, collate_fn=collate)
    model = DistilBertForTokenClassification(DistilBertConfig(num_labels=9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1_000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
