"""Image classifiers and encoders of transformers in a plain loop: ConvNeXt, Swin, ViT, SegFormer."""

import argparse
import time

import torch
from torch.nn import functional as F
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)


def build(name):
    if name == "convnext":  # ConvNeXt-Base
        return ConvNextForImageClassification(
            ConvNextConfig(hidden_sizes=[128, 256, 512, 1024], depths=[3, 3, 27, 3], num_labels=1000)
        )
    if name == "swin":  # Swin-Tiny
        return SwinForImageClassification(SwinConfig(num_labels=1000))
    if name == "segformer":  # SegFormer-B2
        return SegformerForSemanticSegmentation(
            SegformerConfig(
                depths=[3, 4, 6, 3],
                hidden_sizes=[64, 128, 320, 512],
                decoder_hidden_size=768,
                num_labels=150,
            )
        )
    return ViTForImageClassification(ViTConfig(num_labels=1000))  # ViT-Base/16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["convnext", "swin", "vit", "segformer"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(args.model).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    images = torch.randn(args.batch, 3, args.size, args.size, device=device)
    if args.model == "segformer":
        labels = torch.randint(0, 150, (args.batch, args.size, args.size), device=device)
    else:
        labels = torch.randint(0, 1000, (args.batch,), device=device)
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not args.fp32):
            logits = model(images).logits
            if args.model == "segformer":
                logits = F.interpolate(logits.float(), size=labels.shape[-2:], mode="bilinear")
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
