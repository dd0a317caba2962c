"""Full fine-tuning of a 0.5 B Qwen2 in a loop of one's own: bf16 autocast, accumulation, cosine."""

import argparse
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 1000)
    start = time.perf_counter()
    for step in range(args.steps):
        for _ in range(args.accumulation):
            tokens = torch.randint(0, 151936, (args.batch, args.length)).to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss / args.accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
