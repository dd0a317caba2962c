"""Llama over a mesh of pipeline, data and tensor parallelism, written as torchtitan is.

``torchrun --nproc-per-node 8 llama_3d.py --pp 2 --tp 2``: stages are cut out of a model on the meta
device, divided by ``parallelize_module``, sharded by ``fully_shard``, and only then made real.
"""

import argparse
import copy
import os
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional


@dataclass
class Args:
    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 8
    hidden: int = 14336
    vocab_size: int = 128256
    seq_len: int = 8192
    rope_theta: float = 500000.0


FLAVORS = {
    "8B": Args(),
    "debug": Args(dim=64, n_layers=4, n_heads=4, n_kv_heads=2, hidden=128, vocab_size=512,
                  seq_len=32),
}  # fmt: skip


def precompute_freqs_cis(dim, end, theta):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    freqs = torch.outer(torch.arange(end, device=freqs.device), freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis[: xq.shape[1]].view(1, xq.shape[1], 1, -1)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    whole = x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim)
    return whole.reshape(bs, slen, n_kv_heads * n_rep, head_dim)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_rep = args.n_heads // args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def forward(self, x, freqs_cis):
        bs, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bs, seqlen, -1, self.head_dim)
        xk = xk.view(bs, seqlen, -1, self.head_dim)
        xv = xv.view(bs, seqlen, -1, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
        keys, values = repeat_kv(xk, self.n_rep), repeat_kv(xv, self.n_rep)
        xq, xk, xv = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        output = functional.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        return self.wo(output.transpose(1, 2).contiguous().view(bs, seqlen, -1))


class FeedForward(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden, bias=False)
        self.w2 = nn.Linear(args.hidden, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention, self.feed_forward = Attention(args), FeedForward(args)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)

    def forward(self, x, freqs_cis):
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.register_buffer("freqs_cis", self._freqs(), persistent=False)
        self.layers = nn.ModuleDict({str(i): TransformerBlock(args) for i in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)

    def _freqs(self):
        args = self.args
        return precompute_freqs_cis(args.dim // args.n_heads, args.seq_len, args.rope_theta)

    def init_weights(self, device):
        with torch.device(device):
            self.freqs_cis = self._freqs()
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        h = self.norm(h) if self.norm is not None else h
        return self.output(h) if self.output is not None else h


def cut(whole, index, count):
    """Of the model what one stage has."""
    model = copy.deepcopy(whole)
    each = len(whole.layers) // count
    for name in list(model.layers):
        if int(name) // each != index:
            del model.layers[name]
    if index > 0:
        model.tok_embeddings = None
    if index < count - 1:
        model.norm = model.output = None
    return model


def apply_tp(model, mesh):
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    here = {name: style for name, style in ends.items() if getattr(model, name) is not None}
    parallelize_module(model, mesh, here)
    for block in model.layers.values():
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(block, mesh, plan)


def apply_fsdp(model, mesh, half):
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    config = {"mesh": mesh, "mp_policy": policy}
    if model.tok_embeddings is not None:
        fully_shard(model.tok_embeddings, **config, reshard_after_forward=False)
    for block in model.layers.values():
        fully_shard(block, **config, reshard_after_forward=False)
    if model.norm is not None and model.output is not None:
        fully_shard([model.norm, model.output], **config, reshard_after_forward=False)
    fully_shard(model, **config)


def cross_entropy_loss(pred, labels):
    return functional.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))


def clip_grad_norm_(parameters, max_norm, pp_mesh):
    grads = [p.grad for p in parameters if p.grad is not None]
    total_norm = torch.nn.utils.get_total_norm(grads, 2.0, False, True)
    if isinstance(total_norm, DTensor):
        total_norm = total_norm.full_tensor()
    total_norm **= 2.0
    dist.all_reduce(total_norm, op=dist.ReduceOp.SUM, group=pp_mesh.get_group())
    total_norm **= 0.5
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm, True)
    return total_norm


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--flavor", default="8B")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ac", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--times", action="store_true")
    return parser.parse_args()


def build(asked, args, device, mesh):
    """The rank's stages and their schedule."""
    kind = torch.device(device).type
    schedule_class = get_schedule_class(asked.schedule)
    per_rank = 1 if issubclass(schedule_class, PipelineScheduleSingle) else 2
    rank, count = mesh["pp"].get_local_rank(), asked.pp * per_rank
    with torch.device("meta"):
        whole = Transformer(args)
    stages, parts = [], []
    for index in (rank + i * asked.pp for i in range(per_rank)):
        part = cut(whole, index, count)
        if asked.tp > 1:
            apply_tp(part, mesh["tp"])
        if asked.ac:
            for name, block in part.layers.named_children():
                part.layers.register_module(name, checkpoint_wrapper(block))
        apply_fsdp(part, mesh["dp_shard"], torch.bfloat16)
        part.to_empty(device=kind)
        with torch.no_grad():
            part.init_weights(kind)
        part.train()
        stages.append(PipelineStage(part, index, count, device, group=mesh.get_group("pp")))
        parts.append(part)
    return parts, schedule_class(
        stages if per_rank > 1 else stages[0],
        n_microbatches=asked.batch,
        loss_fn=cross_entropy_loss,
    ), stages  # fmt: skip


class Trainer:
    def __init__(self, asked, args, device, mesh):
        self.asked, self.args, self.device, self.mesh = asked, args, device, mesh
        self.parts, self.schedule, self.stages = build(asked, args, device, mesh)
        self.first = any(s.is_first for s in self.stages)
        self.last = any(s.is_last for s in self.stages)
        self.optimizers = [torch.optim.AdamW(p.parameters(), lr=3e-4, fused=True)
                           for p in self.parts]  # fmt: skip
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10))
            for o in self.optimizers
        ]

    def run(self, run, inputs, labels, **options):
        """A step of the schedule, or an evaluation."""
        targets, losses = (labels, []) if self.last else (None, None)
        run(*([inputs] if self.first else []), target=targets, losses=losses, **options)
        return losses

    def train_step(self):
        shape = self.asked.batch, self.args.seq_len + 1
        tokens = torch.randint(self.args.vocab_size, shape)
        inputs, labels = tokens[:, :-1].to(self.device), tokens[:, 1:].to(self.device)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        losses = self.run(self.schedule.step, inputs, labels, return_outputs=False)
        if self.asked.clip:
            parameters = [p for part in self.parts for p in part.parameters()]
            clip_grad_norm_(parameters, self.asked.clip, self.mesh["pp"])
        for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        if self.asked.validate:
            with torch.no_grad():
                self.run(self.schedule.eval, inputs, labels)
        if self.last:
            mean = torch.mean(torch.stack(losses))
            dist.all_reduce(mean, group=self.mesh["dp_shard"].get_group())


def main():
    asked = parse()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    shape = asked.pp, dist.get_world_size() // asked.pp // asked.tp, asked.tp
    mesh = init_device_mesh(kind, shape, mesh_dim_names=("pp", "dp_shard", "tp"))
    trainer = Trainer(asked, FLAVORS[asked.flavor], device, mesh)
    began = time.perf_counter()
    for _ in range(asked.steps):
        trainer.train_step()
    if kind == "cuda":
        torch.cuda.synchronize()
    if asked.times and dist.get_rank() == 0:
        print(f"took {time.perf_counter() - began:.3f} s")
    held = sum(p.to_local().numel() for part in trainer.parts for p in part.parameters())
    sys.stdout.write(f"{dist.get_rank()} {[s.stage_index for s in trainer.stages]} {held}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
