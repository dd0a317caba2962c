"""Masked autoencoding of images with transformers' ViT-MAE in a plain loop, bf16, fused AdamW."""

import argparse

import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    large = dict(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    model = ViTMAEForPreTraining(ViTMAEConfig(**(large if args.large else {}))).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), fused=True)
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, 224, 224, device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not args.fp32):
            loss = model(pixel_values=images).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
