"""A picture-and-text model: frozen CLIP tower, a projector and a small Llama that are trained."""

import argparse

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=768)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tower = CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
        image_size=336, patch_size=14, projection_dim=768,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=32_064, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=4096,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=32_000, image_seq_length=576
    )
    model = LlavaForConditionalGeneration(config).to(device, torch.bfloat16)
    for name, p in model.named_parameters():
        p.requires_grad = "vision_tower" not in name
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=2e-5, fused=True
    )
    words = torch.randint(0, 31_999, (args.batch, args.length), device=device)
    words[:, 8 : 8 + 576] = 32_000
    labels = words.clone()
    labels[:, : 8 + 576] = -100
    mask = torch.ones_like(words)
    pixels = torch.randn(args.batch, 3, 336, 336, device=device, dtype=torch.bfloat16)
    for step in range(args.steps):
        loss = model(input_ids=words, attention_mask=mask, pixel_values=pixels, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
