"""DeepSpeed's engines in one loop: actor and critic beside a frozen reference and reward, a GAN."""

import sys

import deepspeed
import torch
from residual import Block
from torch import nn

WORDS, WIDTH, LENGTH, BATCH, STEPS = 1000, 256, 64, 4, 4


class Policy(nn.Module):
    def __init__(self, layers, out):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, out)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Actor(Policy):
    pass


class Critic(Policy):
    pass


def engine(module, stage, learns=True):
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
    }
    if learns:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    return deepspeed.initialize(model=module, config=config)[0]


def likelihoods(logits, ids):
    return logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def ppo(stage):
    """As step 3 of DeepSpeed-Chat trains, without its generation."""
    actor, critic = engine(Actor(4, WORDS), stage), engine(Critic(2, 1), stage)
    frozen = 3 if stage == 3 else 0
    reference, reward = (
        engine(kind, frozen, learns=False).eval() for kind in (Actor(4, WORDS), Critic(2, 1))
    )
    for _ in range(STEPS):
        ids = torch.randint(0, WORDS, (BATCH, LENGTH), device=actor.device)
        actor.eval(), critic.eval()
        with torch.no_grad():
            before, stays = likelihoods(actor(ids), ids), likelihoods(reference(ids), ids)
            score, values = reward(ids).squeeze(-1), critic(ids).squeeze(-1)
        actor.train(), critic.train()
        advantage = score - values - 0.1 * (before - stays)
        ratio = torch.exp(likelihoods(actor(ids), ids) - before)
        actor.backward((-advantage * ratio.clamp(0.8, 1.2)).mean())
        actor.step()
        critic.backward((critic(ids).squeeze(-1) - score).pow(2).mean())
        critic.step()
    for each, name in ((actor, "actor"), (critic, "critic")):
        each.save_checkpoint(f"{sys.argv[3]}/{name}")


def gan(stage):
    """As DeepSpeed's example of a GAN: two backwards of a critic's step, one through both."""

    class Maker(nn.Sequential):
        pass

    class Judge(nn.Sequential):
        pass

    maker = engine(Maker(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512)), stage)
    judge = engine(Judge(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1)), stage)
    said = nn.functional.binary_cross_entropy_with_logits
    half = {"device": judge.device, "dtype": torch.bfloat16}
    for _ in range(STEPS):
        judge.zero_grad()
        out = judge(torch.randn(BATCH, 512, **half))
        judge.backward(said(out.float(), torch.ones(BATCH, 1, device=judge.device)))
        made = maker(torch.randn(BATCH, 64, **half))
        out = judge(made.detach())
        judge.backward(said(out.float(), torch.zeros(BATCH, 1, device=judge.device)))
        judge.step()
        maker.zero_grad()
        out = judge(made)
        maker.backward(said(out.float(), torch.ones(BATCH, 1, device=judge.device)))
        maker.step()


{"ppo": ppo, "gan": gan}[sys.argv[1]](int(sys.argv[2]))
