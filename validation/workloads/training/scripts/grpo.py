"""Group relative policy optimization: ratios against old log probabilities, KL to a reference."""

import argparse

import torch
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM


def token_log_probabilities(model, ids, temperature=0.9):
    logits = model(input_ids=ids).logits[:, :-1, :] / temperature
    rows = []
    for row_logits, row_ids in zip(logits, ids[:, 1:]):
        logp = F.log_softmax(row_logits, dim=-1)
        rows.append(torch.gather(logp, 1, row_ids.unsqueeze(1)).squeeze(1))
    return torch.stack(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--length", type=int, default=768)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model, reference = Qwen2ForCausalLM(config), Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    for step in range(args.steps):
        for _ in range(args.groups):
            ids = torch.randint(0, 151936, (args.size, args.length), device=device)
            rewards = torch.rand(args.size, device=device)
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            with torch.no_grad():
                base = token_log_probabilities(reference, ids)
            mine = token_log_probabilities(model, ids)
            kl = torch.exp(base - mine) - (base - mine) - 1
            ratio = torch.exp(mine - mine.detach())
            clipped = torch.clamp(ratio, 0.8, 1.2)
            gain = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
            loss = -(gain - 0.04 * kl).mean() / args.groups
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
