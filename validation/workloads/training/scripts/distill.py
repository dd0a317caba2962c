"""Distillation: a frozen BERT-large teaches a BERT-base, masked language modelling, bf16."""

import argparse
import time

import torch
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    large = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    teacher = BertForMaskedLM(large).to(device, dtype=torch.bfloat16).eval()
    student = BertForMaskedLM(BertConfig()).to(device).train()
    for p in teacher.parameters():
        p.requires_grad = False
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    tokens = torch.randint(0, 30522, (args.batch, args.length), device=device)
    mask = torch.ones_like(tokens)
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.no_grad():
            target = teacher(input_ids=tokens, attention_mask=mask).logits
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = student(input_ids=tokens, attention_mask=mask).logits
            soft = F.log_softmax(logits.float() / 2, dim=-1)
            loss = F.kl_div(soft, F.softmax(target.float() / 2, dim=-1), reduction="batchmean") * 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
