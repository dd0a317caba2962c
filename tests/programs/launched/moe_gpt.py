"""A GPT whose every other block is a mixture of experts, as Megatron-DeepSpeed builds them."""

import argparse

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import is_moe_param, split_params_into_different_moe_groups_for_optimizer
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(hidden, 4 * hidden)
        self.dense_4h_to_h = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.dense_4h_to_h(functional.gelu(self.dense_h_to_4h(x))), None


class Block(nn.Module):
    def __init__(self, args, layer):
        super().__init__()
        hidden, self.heads = args.hidden_size, args.num_attention_heads
        self.input_layernorm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.post_attention_layernorm = nn.LayerNorm(hidden)
        self.num_experts = args.num_experts if (layer + 1) % args.expert_interval == 0 else 1
        if self.num_experts <= 1:
            self.mlp = Mlp(hidden)
        else:
            self.mlp = MoE(
                hidden, Mlp(hidden), num_experts=args.num_experts,
                ep_size=args.moe_expert_parallel_size, k=args.topk,
                use_residual=args.mlp_type == "residual",
                capacity_factor=args.moe_train_capacity_factor,
                eval_capacity_factor=1.0, min_capacity=4,
                drop_tokens=args.moe_token_dropping, use_tutel=args.use_tutel,
                enable_expert_tensor_parallelism=False,
            )  # fmt: skip

    def forward(self, x):
        batch, seq, hidden = x.shape
        mixed = self.query_key_value(self.input_layernorm(x))
        q, k, v = mixed.view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dense(attended.transpose(1, 2).reshape(batch, seq, hidden))
        moe_loss = torch.zeros((), device=x.device, dtype=x.dtype)
        if self.num_experts == 1:
            out, _bias = self.mlp(self.post_attention_layernorm(x))
        else:
            out, moe_loss, _ = self.mlp(self.post_attention_layernorm(x))
        return x + out, moe_loss


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.word_embeddings = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position_embeddings = nn.Embedding(args.seq_length, args.hidden_size)
        self.layers = nn.ModuleList(Block(args, i) for i in range(args.num_layers))
        self.final_layernorm = nn.LayerNorm(args.hidden_size)

    def forward(self, ids, labels):
        places = torch.arange(ids.shape[1], device=ids.device)
        x, losses = self.word_embeddings(ids) + self.position_embeddings(places), []
        for layer in self.layers:
            x, loss = layer(x)
            losses.append(loss)
        logits = functional.linear(self.final_layernorm(x), self.word_embeddings.weight)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return loss + 0.01 * sum(losses)


def groups(model):
    """Weight decay or none, then experts apart, as ``get_optimizer_param_groups`` has it."""
    decays = {"params": [], "name": "weight_decay_params"}
    others = {"params": [], "weight_decay": 0.0, "name": "no_weight_decay_params"}
    for p in model.parameters():
        (decays if p.dim() > 1 else others)["params"].append(p)
    return split_params_into_different_moe_groups_for_optimizer((decays, others))


def main():
    parser = argparse.ArgumentParser()
    for name, default in (
        ("num-layers", 4), ("hidden-size", 512), ("num-attention-heads", 8), ("seq-length", 256),
        ("vocab-size", 8192), ("micro-batch-size", 4), ("num-experts", 8), ("expert-interval", 2),
        ("moe-expert-parallel-size", 4), ("topk", 1), ("zero-stage", 1), ("steps", 4),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--moe-train-capacity-factor", type=float, default=1.0)
    parser.add_argument("--mlp-type", default="standard")
    parser.add_argument("--use-tutel", action="store_true")
    parser.add_argument(
        "--disable-moe-token-dropping", action="store_false", dest="moe_token_dropping"
    )
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = Gpt(args)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=deepspeed.ops.adam.FusedAdam(groups(model), lr=1e-4),
        config={
            "train_micro_batch_size_per_gpu": args.micro_batch_size, "bf16": {"enabled": True},
            "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": args.zero_stage},
        },
    )  # fmt: skip
    for _ in range(2 * args.steps):
        ids = torch.randint(
            args.vocab_size, (args.micro_batch_size, args.seq_length), device="cuda"
        )
        engine.backward(engine(ids, labels=ids))
        engine.step()
    if torch.distributed.get_rank() == 0:
        experts = sum(p.numel() for p in model.parameters() if is_moe_param(p))
        print(f"{engine.global_steps} steps, {experts} elements of experts here")


if __name__ == "__main__":
    main()
