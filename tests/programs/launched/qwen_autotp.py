"""A Qwen3 whose layers DeepSpeed shares out (AutoTP), on GPUs or on gloo's CPU ranks."""

import sys

import deepspeed
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def main(parts, device, steps, tokens, tied):
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG, tie_word_embeddings=bool(tied)))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": parts},
        },
    )  # fmt: skip
    torch.manual_seed(0)  # the parts of a replica are given the same
    ids = torch.randint(256, (2, tokens), device=device)
    for _ in range(steps):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    whole = sum(p.numel() for p in model.parameters())
    print(whole, engine.train_batch_size(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
