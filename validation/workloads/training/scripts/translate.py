"""Translation with nn.Transformer: padding masks, a causal mask, label smoothing, Noam's schedule."""

import argparse

import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, vocabulary=32000, width=512, layers=6, heads=8):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=0)
        self.target = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(512, width))
        self.transformer = nn.Transformer(
            width, heads, layers, layers, 4 * width, 0.1, batch_first=True
        )
        self.out = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        hidden = self.transformer(
            self.source(source) + self.position[: source.shape[1]],
            self.target(target) + self.position[: target.shape[1]],
            tgt_mask=mask, src_key_padding_mask=source == 0, tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
        )  # fmt: skip
        return self.out(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Translator().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: 512**-0.5 * min((i + 1) ** -0.5, (i + 1) * 4000**-1.5)
    )
    criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    scaler = torch.amp.GradScaler(device, enabled=args.fp16)
    for step in range(args.steps):
        source = torch.randint(1, 32000, (args.batch, args.length)).to(device)
        target = torch.randint(1, 32000, (args.batch, args.length + 1)).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16, enabled=args.fp16):
            logits = model(source, target[:, :-1])
            loss = criterion(logits.reshape(-1, 32000), target[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
