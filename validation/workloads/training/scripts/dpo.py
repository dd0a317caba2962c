"""Direct preference optimization of a Llama: a policy, a frozen reference, chosen and rejected."""

import argparse

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM


def log_probabilities(model, tokens):
    logits = model(input_ids=tokens).logits[:, :-1]
    chosen = torch.gather(logits.log_softmax(-1), 2, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    return chosen.sum(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=32000, hidden_size=1536, intermediate_size=4096, use_cache=False,
        num_hidden_layers=args.layers, num_attention_heads=24, num_key_value_heads=8,
    )  # fmt: skip
    policy = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    reference = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    reference.eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-7)
    for step in range(args.steps):
        chosen = torch.randint(0, 32000, (args.batch, args.length), device=device)
        rejected = torch.randint(0, 32000, (args.batch, args.length), device=device)
        tokens = torch.cat([chosen, rejected])
        with torch.no_grad():
            base = log_probabilities(reference, tokens)
        mine = log_probabilities(policy, tokens)
        margin = (mine - base).float()
        chosen_reward, rejected_reward = margin[: args.batch], margin[args.batch :]
        loss = -F.logsigmoid(args.beta * (chosen_reward - rejected_reward)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
