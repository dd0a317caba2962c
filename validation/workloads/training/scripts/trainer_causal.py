"""A causal language model under transformers' Trainer: whole, checkpointed, or LoRA by peft."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

MODELS = {
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
               num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
               tie_word_embeddings=True),
    "3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
               num_attention_heads=24, num_key_value_heads=8, vocab_size=128256,
               tie_word_embeddings=True),
    "160m": dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                 num_attention_heads=12, num_key_value_heads=12, vocab_size=32000,
                 tie_word_embeddings=False),
}  # fmt: skip


class Tokens(torch.utils.data.Dataset):
    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (self.length,))
        return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="1b")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--optim", default="adamw_torch_fused")
    parser.add_argument("--pure-bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", default="/tmp/trainer_causal")
    args = parser.parse_args()
    config = LlamaConfig(**MODELS[args.model], max_position_embeddings=8192, use_cache=False)
    if args.pure_bf16 or args.lora:
        torch.set_default_dtype(torch.bfloat16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(
            model,
            LoraConfig(r=args.lora, lora_alpha=2 * args.lora, lora_dropout=0.05,
                       target_modules=targets, task_type="CAUSAL_LM"),
        )  # fmt: skip
        if args.checkpointing:
            model.enable_input_require_grads()
    arguments = TrainingArguments(
        output_dir=args.out,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        bf16=device == "cuda",
        gradient_checkpointing=args.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if args.checkpointing else None,
        optim=args.optim,
        learning_rate=1e-4,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=0,
    )
    samples = args.batch * args.accumulation * args.steps
    data = Tokens(samples, args.length, config.vocab_size)
    result = Trainer(model=model, args=arguments, train_dataset=data).train()
    print(f"{result.metrics['train_runtime']:.1f} s for {args.steps} steps")


if __name__ == "__main__":
    main()
