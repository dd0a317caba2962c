"""Long sequences through a decoder of transformers: checkpoints, bf16 weights, or LoRA by peft."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPES = {
    "qwen3-0.6b": (Qwen3Config, Qwen3ForCausalLM, dict(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)),
    "llama-1b": (LlamaConfig, LlamaForCausalLM, dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True)),
    "llama-7b": (LlamaConfig, LlamaForCausalLM, dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32)),
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--whole", action="store_true", help="no checkpoints")
    parser.add_argument("--steps", type=int, default=13)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config_class, model_class, shape = SHAPES[args.model]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = model_class(config_class(**shape, max_position_embeddings=65536, use_cache=False))
    torch.set_default_dtype(torch.float32)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        )
        model.enable_input_require_grads()
    if not args.whole:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    for step in range(args.steps):
        tokens = torch.randint(0, shape["vocab_size"], (args.batch, args.length), device=device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
