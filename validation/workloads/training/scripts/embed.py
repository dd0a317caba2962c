"""Sentence embeddings: a small BERT, mean pooling, in-batch negatives, two towers of one model."""

import argparse

import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup


def encode(model, tokens, mask):
    hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).float()
    pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return F.normalize(pooled, dim=-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--base", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = dict(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    model = BertModel(BertConfig(**({} if args.base else small))).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    vocabulary = model.config.vocab_size
    for step in range(args.steps):
        queries = torch.randint(0, vocabulary, (args.batch, args.length)).to(device)
        passages = torch.randint(0, vocabulary, (args.batch, args.length)).to(device)
        mask = torch.ones_like(queries)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            a, b = encode(model, queries, mask), encode(model, passages, mask)
            scores = a @ b.T * 20.0
            labels = torch.arange(args.batch, device=device)
            loss = F.cross_entropy(scores, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
