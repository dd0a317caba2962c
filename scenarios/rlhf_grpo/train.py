"""GRPO of Qwen2.5 7B on Ray: vLLM rolls out, DeepSpeed ZeRO-3 trains, a reference model watches.

Engines and trainers have GPUs of their own; after each update the trainers' first rank broadcasts
the weights to all engines over NCCL. With --colocate they share GPUs and take turns, and every rank
hands its weights over by CUDA IPC.
"""

import argparse
import os
import socket

import deepspeed
import ray
import torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.multiprocessing.reductions import reduce_tensor
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams

MODEL = "Qwen/Qwen2.5-7B-Instruct"


def ds_config(args, train):
    zero = {"stage": 3, "overlap_comm": True, "stage3_param_persistence_threshold": 10_000}
    config = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.samples // args.trainers // args.micro_batch,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    if train:
        config["gradient_clipping"] = 1.0
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-6, "betas": [0.9, 0.95]}}
    return config


def log_probs(model, tokens):
    """Of each token, given those before it."""
    logits = model(tokens[:, :-1]).logits
    picked = torch.gather(logits.log_softmax(-1), 2, tokens[:, 1:].unsqueeze(-1))
    return picked.squeeze(-1)


@ray.remote(num_gpus=1)
class Engine:
    """vLLM in an actor; with tensor parallelism its workers are actors of their own."""

    def __init__(self, bundles=None, **options):
        if bundles is not None:
            os.environ["VLLM_RAY_PER_WORKER_GPUS"] = "0.3"
            os.environ["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundles))
        self.llm = LLM(**options)

    def rollout(self, prompts, sampling):
        return [out.token_ids for answer in self.llm.generate(prompts, sampling)
                for out in answer.outputs]  # fmt: skip

    def rpc(self, method, *args):
        return self.llm.collective_rpc(method, args=args)

    def sleep(self):
        self.llm.sleep(level=2)

    def wake_up(self, tags):
        self.llm.wake_up(tags=tags)

    def forget_prompts(self):
        self.llm.reset_prefix_cache()


class Rank:
    """One process of a DeepSpeed group that Ray actors make by hand."""

    def __init__(self, rank, world_size, address=None, port=None):
        self.address = address or ray.util.get_node_ip_address()
        self.port = port or self.free_port()
        os.environ.update(
            MASTER_ADDR=self.address, MASTER_PORT=str(self.port), RANK=str(rank),
            WORLD_SIZE=str(world_size), LOCAL_RANK="0",
        )  # fmt: skip

    @staticmethod
    def free_port():
        with socket.socket() as s:
            s.bind(("", 0))
            return s.getsockname()[1]

    def where(self):
        return self.address, self.port

    def load(self, args, train):
        deepspeed.init_distributed()
        self.args = args
        model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
        if train:
            model.gradient_checkpointing_enable()
        self.engine, *_ = deepspeed.initialize(model=model, config=ds_config(args, train))
        self.engine.train(train)

    def batches(self, sequences):
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        mine = torch.tensor(sequences[rank::world])
        return mine.to("cuda").split(self.args.micro_batch)

    def score(self, sequences):
        """Log probabilities, without gradients."""
        with torch.no_grad():
            return [log_probs(self.engine, batch).cpu() for batch in self.batches(sequences)]


@ray.remote(num_gpus=1)
class Reference(Rank):
    pass


@ray.remote(num_gpus=1)
class Trainer(Rank):
    def join_engines(self, engines, workers, port):
        """Rank 0 and all workers of all engines are one NCCL group."""
        if torch.distributed.get_rank() == 0:
            from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
            from vllm.distributed.utils import StatelessProcessGroup

            world, each = 1 + workers, workers // len(engines)
            joined = [
                engine.rpc.remote("join_trainers", self.address, port, 1 + i * each, world)
                for i, engine in enumerate(engines)
            ]
            group = StatelessProcessGroup.create(self.address, port, 0, world)
            self.link = PyNcclCommunicator(group, device=torch.device("cuda:0"))
            ray.get(joined)

    def update(self, sequences, rewards, references):
        """One step of GRPO over all sequences."""
        spread = rewards.std(-1, keepdim=True) + 1e-4
        advantages = (rewards - rewards.mean(-1, keepdim=True)) / spread
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        mine = advantages.flatten()[rank::world].to("cuda").split(self.args.micro_batch)
        for batch, advantage, reference in zip(
            self.batches(sequences), mine, references, strict=True
        ):
            now, old = log_probs(self.engine, batch), reference.to("cuda")
            ratio = torch.exp(now - now.detach())
            kl = torch.exp(old - now) - (old - now) - 1
            loss = -(ratio * advantage[:, None] - 0.04 * kl).mean()
            self.engine.backward(loss)
            self.engine.step()
        torch.cuda.empty_cache()
        torch.distributed.barrier()

    def send_weights(self, engines):
        first = torch.distributed.get_rank() == 0
        for name, p in self.engine.module.named_parameters():
            if first:
                taken = [e.rpc.remote("take_weight", name, p.dtype, p.ds_shape) for e in engines]
            with deepspeed.zero.GatheredParameters([p]):
                if first:
                    self.link.broadcast(p.data, src=0)
                    ray.get(taken)
        torch.distributed.barrier()

    def hand_over(self, engine):
        """To the engine's worker on the same GPU."""
        for name, p in self.engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters([p]):
                ray.get(engine.rpc.remote("open_weight", name, reduce_tensor(p.data)))

    def offload(self):
        self.engine.offload_states()
        torch.cuda.empty_cache()

    def reload(self):
        self.engine.reload_states()


def group_of(kind, args, pg, first, share, train):
    """Actors in bundles of the placement group, the first of which says where they meet."""

    def actor(rank, *where):
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=pg, placement_group_bundle_index=first + rank
        )
        made = kind.options(num_cpus=share, num_gpus=share, scheduling_strategy=strategy)
        return made.remote(rank, args.trainers, *where)

    master = actor(0)
    where = ray.get(master.where.remote())
    actors = [master, *(actor(rank, *where) for rank in range(1, args.trainers))]
    ray.get([a.load.remote(args, train) for a in actors])
    return actors


def engines_of(args, pg, first):
    options = {
        "model": MODEL, "dtype": "bfloat16", "max_model_len": 4096,
        "tensor_parallel_size": args.tp, "enforce_eager": False,
        "gpu_memory_utilization": 0.5 if args.colocate else 0.9,
        "enable_sleep_mode": args.colocate, "worker_extension_cls": "receiving.Receives",
        "distributed_executor_backend": "ray" if args.tp > 1 else "uni",
    }  # fmt: skip
    made = []
    for i in range(args.engines):
        bundles = list(range(first + i * args.tp, first + (i + 1) * args.tp))
        gpus = 0 if args.tp > 1 else 0.3 if args.colocate else 1
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=pg, placement_group_capture_child_tasks=True,
            placement_group_bundle_index=bundles[0],
        )  # fmt: skip
        actor = Engine.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=strategy)
        if args.tp > 1:
            options["bundles"] = bundles
        made.append(actor.remote(**options))
    ray.get([e.rpc.remote("ready") for e in made])
    return made


def iteration(args, engines, trainers, references):
    sampling = SamplingParams(temperature=1.0, max_tokens=args.tokens, ignore_eos=True)
    prompts = [{"prompt_token_ids": [i] * args.prompt} for i in range(args.samples // args.group)]
    prompts = [p for p in prompts for _ in range(args.group)]
    share = len(prompts) // len(engines)
    parts = [prompts[i * share : (i + 1) * share] for i in range(len(engines))]
    answers = ray.get([e.rollout.remote(p, sampling) for e, p in zip(engines, parts, strict=True)])
    responses = [ids for answer in answers for ids in answer]
    flat = [p["prompt_token_ids"] + list(ids) for p, ids in zip(prompts, responses, strict=True)]
    rewards = torch.rand(len(flat) // args.group, args.group)
    if args.colocate:
        ray.get([e.sleep.remote() for e in engines])
        ray.get([t.reload.remote() for t in trainers])
    data = ray.put(flat)
    scored = ray.get([r.score.remote(data) for r in references])
    ray.get([t.update.remote(data, rewards, s) for t, s in zip(trainers, scored, strict=True)])
    if args.colocate:
        ray.get([t.offload.remote() for t in trainers])
        ray.get([e.wake_up.remote(["weights"]) for e in engines])
        ray.get([t.hand_over.remote(e) for t, e in zip(trainers, engines, strict=True)])
        ray.get([e.wake_up.remote(["kv_cache"]) for e in engines])
    else:
        ray.get([t.send_weights.remote(engines) for t in trainers])
    ray.get([e.forget_prompts.remote() for e in engines])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--colocate", action="store_true")
    args = parser.parse_args()
    ray.init()
    bundles = args.trainers if args.colocate else args.trainers + args.engines * args.tp
    pg = placement_group([{"GPU": 1, "CPU": 2}] * bundles, strategy="PACK")
    ray.get(pg.ready())
    engines = engines_of(args, pg, 0 if args.colocate else args.trainers)
    if args.colocate:
        ray.get([e.sleep.remote() for e in engines])
    share = 0.3 if args.colocate else 0.5
    trainers = group_of(Trainer, args, pg, 0, share, train=True)
    references = group_of(Reference, args, pg, 0, share, train=False)
    if args.colocate:
        ray.get([t.offload.remote() for t in trainers])
        ray.get([e.wake_up.remote(["weights", "kv_cache"]) for e in engines])
    else:
        workers = args.engines * args.tp
        ray.get([t.join_engines.remote(engines, workers, 51_216) for t in trainers])
    for number in range(args.iterations):
        iteration(args, engines, trainers, references)
        print(f"iteration {number} is over")


if __name__ == "__main__":
    main()
