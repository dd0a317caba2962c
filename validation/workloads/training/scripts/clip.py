"""CLIP (ViT-B/32) contrastive pre-training: two towers, one loss, bf16 autocast."""

import argparse
import time

import torch
from transformers import CLIPConfig, CLIPModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = CLIPModel(CLIPConfig()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2, fused=True)
    images = torch.randn(args.batch, 3, 224, 224, device=device)
    tokens = torch.randint(1, 49000, (args.batch, 77), device=device)
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, pixel_values=images, return_loss=True).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
